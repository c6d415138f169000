"""What breaks Vault in ways of its own: seals, step-downs, tokens, snapshots, configuration. Not what breaks any host.

A new module goes into MODULES, with its kinds.
"""

MODULES = {
    "seal": ("vault.seal",),
    "active": ("vault.step_down",),
    "token": ("vault.token.revoke",),
    "snapshot": ("vault.snapshot.save", "vault.snapshot.restore"),
    "config": ("vault.config",),
}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
