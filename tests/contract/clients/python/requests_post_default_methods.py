"""requests with urllib3's default methods and a POST, which is not among them: it is sent once, whatever comes back.

Each POST of this one makes another prepared query. Only where no connection came about does urllib3 try again.
"""

import sys

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

retry = Retry(total=3, backoff_factor=0.1, backoff_jitter=0.1, status_forcelist=[429, 500, 502, 503, 504])
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
reply = session.post(f"{sys.argv[1]}/v1/query", json={"Service": {"Service": "consul"}}, timeout=1)
reply.raise_for_status()
