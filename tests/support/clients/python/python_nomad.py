"""python-nomad as it comes: one request by way of requests, no retry, a timeout of 5 s."""

import os

import nomad

nomad.Nomad(address=os.environ["NOMAD_ADDR"]).status.leader.get_leader()
