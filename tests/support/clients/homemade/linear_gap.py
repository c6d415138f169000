"""Nearly right: the gap grows by 300 ms each time, which is linear; five retries, for everybody alike."""

import sys

from attempt import read, repeat

sys.exit(not repeat(lambda: read(sys.argv[1]).ok, [0.3, 0.6, 0.9, 1.2, 1.5]))
