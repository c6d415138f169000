"""Right, for a plain PUT: sends it once, and tells its caller when it cannot know whether it was done."""

import sys

from attempt import write

sys.exit(not write(sys.argv[1]).ok)
