"""Right: a write with check-and-set (cas=0: only if the key is not there) can be sent again whatever happened.

If the first one was done and its reply was lost, the second one changes nothing, and a look at the key settles it.
"""

import json
import random
import sys
import urllib.request
import uuid

from attempt import KEY, repeat, send

place = f"{sys.argv[1]}{KEY}/{uuid.uuid4()}"
value = uuid.uuid4().bytes.hex().encode()


def write_once() -> bool:
    reply = send(urllib.request.Request(f"{place}?cas=0", data=value, method="PUT"))
    if not reply.ok:
        return False
    return json.loads(reply.body) is True or send(urllib.request.Request(f"{place}?raw")).body == value


gaps_s = (gap_s * random.uniform(0.5, 1.0) for gap_s in (0.1, 0.2, 0.4))
sys.exit(not repeat(write_once, gaps_s))
