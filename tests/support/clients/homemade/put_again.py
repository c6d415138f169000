"""Wrong: sends a plain PUT again whenever there was no good reply, also when it may have been done already."""

import random
import sys

from attempt import repeat, write

gaps_s = (gap_s * random.uniform(0.5, 1.0) for gap_s in (0.1, 0.2, 0.4))
sys.exit(not repeat(lambda: write(sys.argv[1]).ok, gaps_s))
