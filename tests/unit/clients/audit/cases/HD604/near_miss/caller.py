import nomad
from sessions import retrying_session

client = nomad.Nomad(host="10.0.0.1", session=retrying_session())
