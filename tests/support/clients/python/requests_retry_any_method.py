"""requests with `allowed_methods=None`: also a POST, perhaps done already, is done again after a lost reply.

What it posts is a new prepared query.
"""

import sys
import uuid

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

retry = Retry(total=3, backoff_factor=0.2, status_forcelist=[429, 500, 502, 503, 504], allowed_methods=None)
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
query = {"Name": str(uuid.uuid4()), "Service": {"Service": "consul"}}
reply = session.post(f"{sys.argv[1]}/v1/query", json=query, timeout=1)
reply.raise_for_status()
