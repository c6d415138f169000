"""Right, as a service: holds a lock for so many seconds, looks at it twice a second, and takes it again once lost.

A session that is gone cannot hold anything again: it makes a new one.
"""

import sys
import time

from lock import acquire, held, session

url, seconds = sys.argv[1], float(sys.argv[2])
mine = ""
deadline = time.monotonic() + seconds
while time.monotonic() < deadline:
    if not mine or not held(url, mine):
        mine = session(url) or ""
        if mine and not acquire(url, mine):
            mine = ""
    time.sleep(0.5)
