import time

import consul

agent = consul.Consul(connections_timeout=5)


def wait_for(path):
    while True:
        try:
            return path.read_text()
        except OSError:
            time.sleep(1)


agent.kv.put("deploys/web", "7")
