"""Wrong: a watcher that keeps the highest index it ever saw, and so waits for one that is not to come for long.

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
    index = max(index, int(answer.headers["X-Consul-Index"]))
