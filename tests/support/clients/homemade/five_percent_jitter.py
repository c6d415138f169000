"""Right by a little: doubling gaps, each of them between 5 % shorter and 5 % longer."""

import random
import sys

from attempt import read, repeat

gaps_s = (gap_s * random.uniform(0.95, 1.05) for gap_s in (0.3, 0.6, 1.2, 2.4))
sys.exit(not repeat(lambda: read(sys.argv[1]).ok, gaps_s))
