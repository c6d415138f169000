"""requests with urllib3's default methods and a POST, which is not among them: it is sent once, whatever comes back.

What it posts is a new prepared query. Only where no connection came about does urllib3 try again.
"""

import sys
import uuid

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

retry = Retry(total=3, backoff_factor=0.2, backoff_jitter=0.2, status_forcelist=[429, 500, 502, 503, 504])
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
query = {"Name": str(uuid.uuid4()), "Service": {"Service": "consul"}}
reply = session.post(f"{sys.argv[1]}/v1/query", json=query, timeout=1)
reply.raise_for_status()
