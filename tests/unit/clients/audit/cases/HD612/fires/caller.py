import requests

policy = requests.adapters.Retry(3, status_forcelist={503})  # <- HD612
