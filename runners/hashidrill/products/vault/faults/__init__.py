"""Faults of Vault: seals, step-downs, tokens, snapshots, configuration. `core/faults/` has those of any host."""
