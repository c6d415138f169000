"""Traffic that only Vault understands: secrets and tokens. How a load keeps its rate is in `core/loads/`.

A new module goes into MODULES, with its kinds.
"""

MODULES = {"kv": ("vault.kv.write", "vault.kv.read"), "tokens": ("vault.token.churn",)}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
