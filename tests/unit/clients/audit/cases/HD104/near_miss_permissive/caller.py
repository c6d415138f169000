import consul

agent = consul.Consul(connections_timeout=5)
