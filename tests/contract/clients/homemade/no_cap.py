"""Wrong: tries for ever, with a growing and jittered gap of up to 0.1 s."""

import random
import sys
import time

from attempt import read

gap_s = 0.025
while not read(sys.argv[1]).ok:
    time.sleep(random.uniform(0.5, 1.0) * gap_s)
    gap_s = min(2 * gap_s, 0.1)
