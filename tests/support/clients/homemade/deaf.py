"""Wrong in one thing: its three jittered and growing gaps take no notice of Retry-After."""

import random
import sys

from attempt import read, repeat

gaps_s = (gap_s * random.uniform(0.5, 1.0) for gap_s in (0.1, 0.2, 0.4))
sys.exit(not repeat(lambda: read(sys.argv[1]).ok, gaps_s))
