"""Wrong: tries for ever, 180 to 220 ms apart. At least not all at the same moment."""

import random
import sys
import time

from attempt import read

while not read(sys.argv[1]).ok:
    time.sleep(random.uniform(0.18, 0.22))
