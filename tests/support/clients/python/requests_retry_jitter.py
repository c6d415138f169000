"""requests with urllib3's Retry used well: few retries of what is transient, growing gaps with jitter, a timeout."""

import sys

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

retry = Retry(total=3, backoff_factor=0.2, backoff_jitter=0.2, status_forcelist=[429, 500, 502, 503, 504])
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
session.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry", timeout=1).raise_for_status()
