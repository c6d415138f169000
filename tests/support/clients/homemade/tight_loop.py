"""Wrong: tries again at once, five times, without any pause."""

import sys

from attempt import read, repeat

sys.exit(not repeat(lambda: read(sys.argv[1]).ok, [0, 0, 0, 0, 0]))
