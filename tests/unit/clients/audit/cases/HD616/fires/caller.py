from requests.adapters import HTTPAdapter

adapter = HTTPAdapter(max_retries=3)  # <- HD616
