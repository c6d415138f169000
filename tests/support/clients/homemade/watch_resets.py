"""Right: a watcher by blocking queries that starts again at 0 when the index went backwards, as Consul's docs ask.

It watches for five answers, with a wait of 1 s each, and at most 6 s.
"""

import sys
import time

from attempt import read

index, answers, deadline = 0, 0, time.monotonic() + 6
while answers < 5 and time.monotonic() < deadline:
    answer = read(sys.argv[1], f"?index={index}&wait=1s", timeout_s=2)
    if not answer.ok:
        sys.exit(1)
    answers += 1
    new = int(answer.headers["X-Consul-Index"])
    index = 0 if new < index else new
