"""Every fault of Vault on each sort of server that it can be put on, and what undoes it behind its back."""

CASES = (
    ("vault.seal", "vault:one-standby"),
    ("vault.seal", "vault:active"),
    ("vault.step_down", "vault:active"),
    ("vault.token.revoke", "vault:active"),
)
DISARMED = (
    ("vault.seal", "vault:one-standby", "unseal"),
    ("vault.seal", "vault:active", "unseal"),
    ("vault.token.revoke", "vault:active", "allow_loads"),
)
"""The last column is a method of the host's VaultOperator. A step-down is done once: nothing of it is left to undo."""
