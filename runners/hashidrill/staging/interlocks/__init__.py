"""What must be true before an existing datacenter is touched, and what ends a run there. Pure decisions, and a few
small clients of Consul's KV store. Who asks for them, and when, is in `staging/attach/`.
"""
