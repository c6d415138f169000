"""Wrong: five retries, 150 ms apart each, however long the trouble lasts, and for everybody alike."""

import sys

from attempt import read, repeat

sys.exit(not repeat(lambda: read(sys.argv[1]).ok, [0.15] * 5))
