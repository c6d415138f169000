"""Right by a little: five exponential retries, each gap between 5 % shorter and 5 % longer."""

import random
import sys
import time

from attempt import read

for gap_s in (0.05, 0.1, 0.2, 0.4, 0.8):
    if read(sys.argv[1]).ok:
        sys.exit(0)
    time.sleep(gap_s * random.uniform(0.95, 1.05))
sys.exit(not read(sys.argv[1]).ok)
