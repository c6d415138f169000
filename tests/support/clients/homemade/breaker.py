"""Right, as a service: a circuit breaker. Three failures in a row open it for 0.5 s; then one attempt tries it out.

Twenty operations a second, for so many seconds; an operation that finds it open fails at once, without a request.
"""

import sys
import time

from attempt import read

url, seconds = sys.argv[1], float(sys.argv[2])
failures, closed_at = 0, 0.0
start = time.monotonic()
for operation in range(int(seconds * 20)):
    time.sleep(max(0.0, start + operation / 20 - time.monotonic()))
    if time.monotonic() < closed_at:
        continue
    failures = 0 if read(url).ok else failures + 1
    closed_at = time.monotonic() + 0.5 if failures >= 3 else 0.0
