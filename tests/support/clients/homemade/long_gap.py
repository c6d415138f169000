"""Wrong: sleeps 2.5 s each time, which is longer than a Retry-After of 2 s that it never reads."""

import sys

from attempt import read, repeat

sys.exit(not repeat(lambda: read(sys.argv[1]).ok, [2.5] * 2))
