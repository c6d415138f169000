"""Faults of Consul: leaders, agents, state, streams, configuration. Faults of any host are in `core/faults/`."""
