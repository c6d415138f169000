"""Faults of Vault: seals, step-downs, tokens, snapshots, configuration. `core/faults/` has those of any host.

A new module is listed in MODULES, with its kinds.
"""

MODULES = {
    "seal": ("vault.seal",),
    "active": ("vault.step_down",),
    "token": ("vault.token.revoke",),
    "snapshot": ("vault.snapshot.save", "vault.snapshot.restore"),
    "config": ("vault.config",),
}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
