from requests.adapters import HTTPAdapter
from urllib3 import Retry

adapter = HTTPAdapter(max_retries=Retry(3, status_forcelist=[503]))
