"""What is under test: hosts, and what can be done to them.

`local/` makes one on this machine, `up/` keeps it running, `attach/` reaches one that stands already.

Nothing here knows a product: agents, roles and APIs of Consul are in `services/`.
"""
