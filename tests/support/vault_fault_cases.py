"""Every fault of Vault on each sort of server that it can be put on, and what undoes it behind its back."""

from fault_cases import on_products

_ON = on_products("products.vault.faults")
CASES = tuple((kind, on) for kind, _, on in _ON)
PARAMS = {kind: params for kind, params, _ in _ON}
RAFT_ONLY = frozenset({"vault.snapshot.save", "vault.snapshot.restore"})
DISARMED = (
    ("vault.seal", "vault:one-standby", "unseal"),
    ("vault.seal", "vault:active", "unseal"),
    ("vault.token.revoke", "vault:active", "allow_loads"),
    ("vault.config", "vault:one-standby", "set back"),
)
"""The last column is a method of the host's VaultOperator, or `set back`: its file is as before, and it restarts.

A step-down, a save and a restore are done once: nothing of them is left to undo.
"""
