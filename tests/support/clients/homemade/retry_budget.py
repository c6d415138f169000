"""Right, as a service: retries come out of a budget of 10 % of the operations, as Finagle's and Linkerd's do.

Twenty operations a second, for so many seconds. Each one pays in a tenth of a retry; a retry costs a whole one.
"""

import random
import sys
import time

from attempt import read

url, seconds = sys.argv[1], float(sys.argv[2])
budget = 0.0
start = time.monotonic()
for operation in range(int(seconds * 20)):
    time.sleep(max(0.0, start + operation / 20 - time.monotonic()))
    budget = min(budget + 0.1, 10.0)
    if not read(url).ok and budget >= 1:
        budget -= 1
        time.sleep(random.uniform(0.005, 0.01))
        read(url)
