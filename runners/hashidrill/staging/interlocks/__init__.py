"""Decides whether an existing datacenter may be touched, and what ends a run there.

Pure decisions, and small clients of Consul's KV store. `staging/attach/` asks them.
"""
