"""Everything that knows Vault: agents, keys, API, roles, probes, faults, loads."""
