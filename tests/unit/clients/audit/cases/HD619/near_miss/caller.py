import requests
from tenacity import retry, stop_after_attempt


@retry(stop=stop_after_attempt(4))
def leader(**options):
    requests.get("http://127.0.0.1:8500/v1/status/peers", **options)
    return requests.get("http://127.0.0.1:8500/v1/status/leader", timeout=(1, 5)).json()


def orders():
    return requests.get("http://127.0.0.1:8080/v1/orders").json()
