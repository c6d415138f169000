"""Faults of Nomad: nodes, leaders, jobs. `core/faults/` has those of any host."""
