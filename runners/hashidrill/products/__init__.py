"""One folder per product, with everything that knows it: agents, roles, API, probes, faults, loads, checks."""
