"""requests with urllib3's default methods: PUT counts as idempotent there, so that a lost reply is a second write."""

import sys

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

retry = Retry(total=3, backoff_factor=0.2, backoff_jitter=0.2, status_forcelist=[429, 503])
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
session.put(f"{sys.argv[1]}/v1/kv/hashidrill/retry", data=b"from a client", timeout=1).raise_for_status()
