import consul
import tenacity  # noqa: F401

agent = consul.Consul(connections_timeout=5)
options = {}
other = consul.Consul(**options)
