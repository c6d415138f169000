import consul

agent = consul.Consul(connections_timeout=5)  # <- HD601


def copy(keys, log):
    for key in keys:
        try:
            agent.kv.put(key, "1")
        except consul.ConsulException:
            log.exception(key)
