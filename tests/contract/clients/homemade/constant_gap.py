"""Wrong: five retries, 100 ms apart each, however long the trouble lasts and for everybody alike."""

import sys
import time

from attempt import read

for _ in range(5):
    if read(sys.argv[1]).ok:
        sys.exit(0)
    time.sleep(0.1)
sys.exit(not read(sys.argv[1]).ok)
