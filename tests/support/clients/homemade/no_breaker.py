"""Wrong, as a service: twenty operations a second, for so many seconds, each with two retries, whatever comes back."""

import sys
import time

from attempt import read, repeat

url, seconds = sys.argv[1], float(sys.argv[2])
start = time.monotonic()
for operation in range(int(seconds * 20)):
    time.sleep(max(0.0, start + operation / 20 - time.monotonic()))
    repeat(lambda: read(url).ok, [0.005, 0.01])
