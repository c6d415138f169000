"""All that knows Consul: its settings, agents, API, probes, faults, loads, snapshots, and checks of experiments.

What breaks any host is in `core/faults/`; how a load keeps its rate is in `core/loads/`.
"""
