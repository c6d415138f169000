"""Wrong: posts again after a lost reply, with a new Idempotency-Key each time, which makes each one another write."""

import json
import random
import sys
import urllib.request
import uuid

from attempt import repeat, send


def post() -> bool:
    query = {"Name": str(uuid.uuid4()), "Service": {"Service": "consul"}}
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    return send(
        urllib.request.Request(f"{sys.argv[1]}/v1/query", json.dumps(query).encode(), headers, method="POST")
    ).ok


gaps_s = (gap_s * random.uniform(0.5, 1.0) for gap_s in (0.1, 0.2, 0.4))
sys.exit(not repeat(post, gaps_s))
