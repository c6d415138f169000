"""Wrong: tries again at once, five times, without any pause."""

import sys

from attempt import read

sys.exit(not any(read(sys.argv[1]).ok for _ in range(6)))
