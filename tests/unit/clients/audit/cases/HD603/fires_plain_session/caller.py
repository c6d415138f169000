import hvac
import requests

session = requests.Session()
client = hvac.Client(url="https://vault:8200", session=session)  # <- HD603
