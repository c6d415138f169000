"""Wrong, as a service: takes a lock once and believes for ever that it has it, as most scripts do."""

import sys
import time

from lock import acquire, session

url, seconds = sys.argv[1], float(sys.argv[2])
mine = session(url)
if mine is None or not acquire(url, mine):
    sys.exit(1)
time.sleep(seconds)
