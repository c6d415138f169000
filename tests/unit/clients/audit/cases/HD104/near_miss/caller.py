import consul
from tenacity import retry, stop_after_attempt, wait_random_exponential

agent = consul.Consul(connections_timeout=5)


@retry(stop=stop_after_attempt(4), wait=wait_random_exponential(max=5))
def put(key, value):
    agent.kv.put(key, value)
