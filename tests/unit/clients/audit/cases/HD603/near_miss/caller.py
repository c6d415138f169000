import hvac
from sessions import retrying_session

client = hvac.Client(url="https://vault:8200", session=retrying_session())
