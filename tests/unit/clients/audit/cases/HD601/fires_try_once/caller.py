import consul
import tenacity

agent = consul.Consul(connections_timeout=5)  # <- HD601


@tenacity.retry(stop=tenacity.stop_after_attempt(3))
def read(path):
    return path.read_text()


def first(keys):
    while keys:
        try:
            return agent.kv.get(keys[0])
        except consul.ConsulException as error:
            raise LookupError(keys[0]) from error
    return None
