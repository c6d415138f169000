import consul
import stamina
from tenacity import Retrying, stop_after_attempt

retryer = Retrying(stop=stop_after_attempt(4))


class Deploys:
    def __init__(self, agent):
        self.agent = agent

    def get(self, name):
        for attempt in stamina.retry_context(on=consul.ConsulException, attempts=4):
            with attempt:
                _, found = self.agent.kv.get(name)
        return found

    def put(self, name, version):
        retryer(self.agent.kv.put, name, version)

    def drop(self, name):
        return retryer(lambda: self.agent.kv.delete(name))


deploys = Deploys(consul.Consul(connections_timeout=5))
