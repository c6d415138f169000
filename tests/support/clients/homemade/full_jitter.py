"""Right: three retries, each gap anywhere between nothing and a window that triples (AWS's «full jitter»)."""

import random
import sys

from attempt import read, repeat

gaps_s = (random.uniform(0, window_s) for window_s in (0.15, 0.45, 1.35))
sys.exit(not repeat(lambda: read(sys.argv[1]).ok, gaps_s))
