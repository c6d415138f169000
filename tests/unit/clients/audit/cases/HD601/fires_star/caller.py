from consul import *  # noqa: F403 - what this fixture is about

agent = Consul(connections_timeout=5)  # noqa: F405 - likewise # <- HD601
index, found = agent.kv.get("deploys/web")
