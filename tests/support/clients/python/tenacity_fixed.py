"""tenacity with `wait_fixed`: four attempts, 0.8 s apart, whatever happened and for everybody alike."""

import sys

import requests
import tenacity


@tenacity.retry(stop=tenacity.stop_after_attempt(4), wait=tenacity.wait_fixed(0.8), reraise=True)
def read() -> bytes:
    reply = requests.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry", timeout=1)
    reply.raise_for_status()
    return reply.content


read()
