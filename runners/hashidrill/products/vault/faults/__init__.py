"""Faults of Vault: seals, step-downs, tokens, snapshots, configuration. Faults of any host are in `core/faults/`."""
