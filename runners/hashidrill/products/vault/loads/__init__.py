"""Loads on Vault: secrets and tokens. `core/loads/` keeps their rate."""
