"""Datacenters that stand already and are reached by address: which one is meant, what is in it, and how to ask it.

Nothing here knows a product: how Consul, Nomad and Vault are logged in to and looked through is in
`products/PRODUCT/attach.py`. What loads send is in `core/loads/`.
"""
