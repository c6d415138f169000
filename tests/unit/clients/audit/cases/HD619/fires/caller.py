import requests
from tenacity import retry, stop_after_attempt


@retry(stop=stop_after_attempt(4))
def leader():
    return requests.get("http://127.0.0.1:8500/v1/status/leader").json()  # <- HD619


@retry(stop=stop_after_attempt(4))
def put(key, value):
    return requests.put(f"http://127.0.0.1:8500/v1/kv/{key}", value, timeout=None)  # <- HD619
