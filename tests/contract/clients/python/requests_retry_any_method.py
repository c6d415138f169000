"""requests with `allowed_methods=None`: also a POST, perhaps done already, is done again after a lost reply.

Each POST of this one makes another prepared query.
"""

import sys

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

retry = Retry(total=3, backoff_factor=0.1, status_forcelist=[429, 500, 502, 503, 504], allowed_methods=None)
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
reply = session.post(f"{sys.argv[1]}/v1/query", json={"Service": {"Service": "consul"}}, timeout=1)
reply.raise_for_status()
