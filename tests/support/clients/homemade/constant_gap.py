"""Wrong: five retries, 0.8 s apart each, however long the trouble lasts, and for everybody alike."""

import sys

from attempt import read, repeat

sys.exit(not repeat(lambda: read(sys.argv[1]).ok, [0.8] * 5))
