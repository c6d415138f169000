"""The protocols of faults, loads, probes, products and hosts, and the registry that finds them by name."""
