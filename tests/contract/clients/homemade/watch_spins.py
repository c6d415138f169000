"""Wrong: a watcher that does start again at 0, but compares with the highest index for ever after, and so spins.

It watches for 3 s.
"""

import sys
import time

from attempt import read

highest, index, deadline = 0, 0, time.monotonic() + 3
while time.monotonic() < deadline:
    answer = read(sys.argv[1], f"?index={index}&wait=1s", timeout_s=2)
    if not answer.ok:
        sys.exit(1)
    new = int(answer.headers["X-Consul-Index"])
    highest = max(highest, new)
    index = 0 if new < highest else new
