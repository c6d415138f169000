"""Faults of Nomad: nodes, leaders, jobs. Faults of any host are in `core/faults/`."""
