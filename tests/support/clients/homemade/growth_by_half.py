"""Right in its growth, which is exponential at a factor of 1.5; five retries, for everybody alike."""

import sys

from attempt import read, repeat

sys.exit(not repeat(lambda: read(sys.argv[1]).ok, [0.3 * 1.5**retry for retry in range(5)]))
