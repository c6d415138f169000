"""Loads on Vault: secrets and tokens. `core/loads/` keeps their rate.

A new module is listed in MODULES, with its kinds.
"""

MODULES = {"kv": ("vault.kv.write", "vault.kv.read"), "tokens": ("vault.token.churn",)}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
