"""All that knows Vault: its agents, keys, API, roles, probes, faults and loads.

What breaks any host is in `core/faults/`; how a load keeps its rate is in `core/loads/`. What Vault stores in Consul
is Consul's.
"""
