import time

import consul

agent = consul.Consul(connections_timeout=5)


def get(key):
    for attempt in range(4):
        try:
            return agent.kv.get(key)
        except consul.ConsulException:
            time.sleep(0.2 * 2**attempt)
    raise TimeoutError(key)
