"""One room a product, with all that knows it: agents, roles, API, probes, faults, loads, checks. No engine."""
