"""Wrong: posts again after a lost reply. Each POST of this one makes another prepared query."""

import json
import random
import sys
import urllib.request

from attempt import repeat, send

BODY = json.dumps({"Service": {"Service": "consul"}}).encode()


def post() -> bool:
    request = urllib.request.Request(f"{sys.argv[1]}/v1/query", data=BODY, method="POST")
    return send(request).ok


gaps_s = (gap_s * random.uniform(0.5, 1.0) for gap_s in (0.1, 0.2, 0.4))
sys.exit(not repeat(post, gaps_s))
