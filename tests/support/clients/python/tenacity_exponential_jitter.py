"""tenacity around requests: four attempts, exponential gaps with jitter, only for what is transient."""

import sys

import requests
import tenacity

TRANSIENT = {429, 500, 502, 503, 504}


def transient(error: BaseException) -> bool:
    if isinstance(error, requests.HTTPError):
        return error.response.status_code in TRANSIENT
    return isinstance(error, requests.RequestException)


@tenacity.retry(
    retry=tenacity.retry_if_exception(transient),
    stop=tenacity.stop_after_attempt(4),
    wait=tenacity.wait_exponential_jitter(multiplier=0.1, max=2, jitter=0.1),
)
def read() -> bytes:
    reply = requests.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry", timeout=1)
    reply.raise_for_status()
    return reply.content


read()
