import consul
import tenacity  # noqa: F401

agent = consul.Consul(connections_timeout=None)  # <- HD602
