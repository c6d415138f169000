from consul import Consul
from tenacity import retry  # noqa: F401

agent = Consul(host="10.0.0.1")  # <- HD602
