"""What is under test: hosts, and what can be done to them. `local/` makes one on this machine, `up/` keeps it running.

Nothing here knows a product: agents, roles and APIs of Consul are in `services/`.
"""
