import requests
from tenacity import retry, stop_after_attempt, wait_random_exponential


@retry(stop=stop_after_attempt(4), wait=wait_random_exponential(multiplier=0.2, max=5))
def leader():
    return requests.get("http://127.0.0.1:8500/v1/status/leader", timeout=5).json()


def orders():
    return requests.get("http://127.0.0.1:8080/v1/orders", timeout=5).json()


def elsewhere(path):
    return requests.get(path, timeout=5)
