"""Every fault of Vault on each sort of server that it can be put on, and what undoes it behind its back."""

CASES = (
    ("vault.seal", "vault:one-standby"),
    ("vault.seal", "vault:active"),
    ("vault.step_down", "vault:active"),
    ("vault.token.revoke", "vault:active"),
    ("vault.config", "vault:active"),
    ("vault.config", "vault:one-standby"),
    ("vault.snapshot.save", "vault:active"),
    ("vault.snapshot.restore", "vault:active"),
)
"""A restore comes after a save: it restores what that one saved."""
PARAMS = {
    "vault.config": {"set": {"default_lease_ttl": "10m", "log_level": "debug"}},
    "vault.snapshot.save": {"name": "before"},
    "vault.snapshot.restore": {"snapshot": "before"},
}
RAFT_ONLY = frozenset({"vault.snapshot.save", "vault.snapshot.restore"})
MOMENTARY = frozenset({"vault.step_down", *RAFT_ONLY})
DISARMED = (
    ("vault.seal", "vault:one-standby", "unseal"),
    ("vault.seal", "vault:active", "unseal"),
    ("vault.token.revoke", "vault:active", "allow_loads"),
    ("vault.config", "vault:one-standby", "set back"),
)
"""The last column is a method of the host's VaultOperator, or `set back`: its file is as before, and it restarts.

A step-down, a save and a restore are done once: nothing of them is left to undo.
"""
