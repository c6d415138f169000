"""Nearly right: the gap grows by 150 ms each time, which is linear; five retries, for everybody alike."""

import sys

from attempt import read, repeat

sys.exit(not repeat(lambda: read(sys.argv[1]).ok, [0.15, 0.3, 0.45, 0.6, 0.75]))
