"""Wrong: a plain PUT, sent again whatever happened; a nonce in its query makes each attempt look like another one."""

import random
import sys
import uuid

from attempt import repeat, write

gaps_s = (gap_s * random.uniform(0.5, 1.0) for gap_s in (0.1, 0.2, 0.4))
sys.exit(not repeat(lambda: write(sys.argv[1], f"?nonce={uuid.uuid4()}").ok, gaps_s))
