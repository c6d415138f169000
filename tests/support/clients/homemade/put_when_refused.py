"""Right, for a plain PUT that may not be repeated blindly: sends it again only where it was surely not done.

That is after a 429 or a 503 (the server says that it refused it), and when there was no connection in the first place.
"""

import random
import socket
import sys
import time
import urllib.error
import urllib.request

from attempt import KEY

gaps_s = [gap_s * random.uniform(0.5, 1.0) for gap_s in (0.1, 0.2, 0.4)]
while True:
    request = urllib.request.Request(sys.argv[1] + KEY, data=b"from a client", method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=1) as reply:
            reply.read()
        break
    except urllib.error.HTTPError as error:
        if error.code not in {429, 503} or not gaps_s:
            raise
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ConnectionRefusedError | socket.gaierror) or not gaps_s:
            raise
    time.sleep(gaps_s.pop(0))
