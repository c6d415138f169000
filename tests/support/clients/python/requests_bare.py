"""requests as most people write it: one request, no retry, no timeout."""

import sys

import requests

reply = requests.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry")
reply.raise_for_status()
