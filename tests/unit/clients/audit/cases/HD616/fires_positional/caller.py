from requests.adapters import HTTPAdapter

adapter = HTTPAdapter(3, 10, 3)  # <- HD616
