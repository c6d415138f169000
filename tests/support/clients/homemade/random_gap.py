"""Wrong: sleeps at random, up to 2 s, and now and then as long as Retry-After says, without ever reading it."""

import random
import sys

from attempt import read, repeat

sys.exit(not repeat(lambda: read(sys.argv[1]).ok, (random.uniform(0, 2) for _ in range(3))))
