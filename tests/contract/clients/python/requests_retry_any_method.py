"""requests with `allowed_methods=None`: a plain PUT, perhaps done already, is done again after a lost reply."""

import sys

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

retry = Retry(total=3, backoff_factor=0.1, status_forcelist=[429, 500, 502, 503, 504], allowed_methods=None)
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
session.put(f"{sys.argv[1]}/v1/kv/hashidrill/retry", data=b"from a client", timeout=1).raise_for_status()
