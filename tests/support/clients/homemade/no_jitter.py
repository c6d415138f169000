"""Wrong in one thing: its doubling gaps are the same for everybody, so that all come back together."""

import sys

from attempt import read, repeat

sys.exit(not repeat(lambda: read(sys.argv[1]).ok, [0.3, 0.6, 1.2, 2.4]))
