"""Right: reads again whatever happened, past any cache, by a parameter of its own that differs each time."""

import random
import sys
import uuid

from attempt import read, repeat

gaps_s = (gap_s * random.uniform(0.5, 1.0) for gap_s in (0.1, 0.2, 0.4))
sys.exit(not repeat(lambda: read(sys.argv[1], f"?fresh={uuid.uuid4()}").ok, gaps_s))
