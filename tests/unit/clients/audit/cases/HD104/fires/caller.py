import consul

agent = consul.Consul(connections_timeout=5)
agent.kv.put("deploys/web", "7")
