import requests

ADDRESS = "http://127.0.0.1:8500"


def leader():
    return requests.get("http://127.0.0.1:8500/v1/status/leader", timeout=5).json()  # <- HD618


def value(key):
    return requests.get(f"{ADDRESS}/v1/kv/{key}?raw", timeout=5).text  # <- HD618


def jobs(address):
    return requests.request("GET", address + "/v1/jobs", timeout=5).json()  # <- HD618


def sealed(host):
    return requests.get(f"https://{host}:8200/v1/sys/health", timeout=5).json()["sealed"]  # <- HD618
