"""Everything that knows Nomad: agents, roles, probes, faults, loads."""
