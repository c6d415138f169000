"""Wrong: a watcher that starts again at 0 once the index went backwards, never trusts an index again, and so spins.

It watches for 3 s.
"""

import sys
import time

from attempt import read

index, trusted, deadline = 0, True, time.monotonic() + 3
while time.monotonic() < deadline:
    answer = read(sys.argv[1], f"?index={index}&wait=1s", timeout_s=2)
    if not answer.ok:
        sys.exit(1)
    new = int(answer.headers["X-Consul-Index"])
    trusted = trusted and new >= index
    index = new if trusted else 0
