"""What breaks Vault in ways of its own: seals, step-downs, tokens. Not what breaks any host.

A new module goes into MODULES, with its kinds.
"""

MODULES = {"seal": ("vault.seal",), "active": ("vault.step_down",), "token": ("vault.token.revoke",)}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
