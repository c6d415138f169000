import time

import consul


def client():
    return consul.Consul(connections_timeout=5)


def read(key):
    return client().kv.get(key)


def wait_for(key):
    found = None
    while not found:
        try:
            _, found = read(key)
        except consul.ConsulException:
            time.sleep(1)
    return found
