"""Faults of Consul: leaders, agents, state, streams, configuration. `core/faults/` has those of any host."""
