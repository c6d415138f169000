import consul
from tenacity import retry, stop_after_attempt, wait_random_exponential

reader = consul.Consul(connections_timeout=5)
agent = consul.Consul(connections_timeout=5)  # <- HD601


@retry(stop=stop_after_attempt(4), wait=wait_random_exponential(max=5))
def get(key):
    return reader.kv.get(key) or agent.kv.get(key)


def put(key, value):
    agent.kv.put(key, value)
