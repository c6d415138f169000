"""One Kubernetes API server: how it is reached, what it is asked, and what of a manifest it would drop unsaid.

Nothing here knows Chaos Mesh; its objects are in `kubernetes/chaos_mesh/`.
"""
