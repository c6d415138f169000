"""Loads on Consul: KV, locks, checks, watches, streams. `core/loads/` keeps their rate."""
