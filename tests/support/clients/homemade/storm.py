"""Wrong, as a service: retries of retries, nine requests for an operation, and operations do not wait for each other.

Twenty operations a second, for so many seconds.
"""

import sys
import threading
import time

from attempt import read, repeat

url, seconds = sys.argv[1], float(sys.argv[2])


def operation() -> None:
    repeat(lambda: repeat(lambda: read(url).ok, [0.005, 0.005]), [0.005, 0.005])


start = time.monotonic()
running = []
for number in range(int(seconds * 20)):
    time.sleep(max(0.0, start + number / 20 - time.monotonic()))
    running.append(threading.Thread(target=operation))
    running[-1].start()
for one in running:
    one.join()
