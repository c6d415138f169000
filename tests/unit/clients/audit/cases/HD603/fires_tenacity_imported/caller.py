import hvac
import tenacity

client = hvac.Client(url="https://vault:8200")  # <- HD603
secret = client.secrets.kv.read_secret_version("web")
assert tenacity.__name__
