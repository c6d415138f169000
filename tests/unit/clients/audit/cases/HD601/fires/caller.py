import consul

agent = consul.Consul(connections_timeout=5)  # <- HD601
index, found = agent.kv.get("deploys/web")
