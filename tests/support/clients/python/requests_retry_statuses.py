"""requests with the urllib3 Retry of most tutorials: three retries of some statuses and of errors of the connection.

The gaps are 0, 0.4 and 0.8 s, the same for everybody: urllib3 waits before the second retry only, and has no jitter by
default. A Retry-After is waited for instead, also by default.
"""

import sys

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

retry = Retry(total=3, backoff_factor=0.2, status_forcelist=[429, 500, 502, 503, 504])
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
session.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry", timeout=1).raise_for_status()
