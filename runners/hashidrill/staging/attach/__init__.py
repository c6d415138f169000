"""Existing datacenters, reached by address: which datacenter an Attach file means, what it contains, and how to query
it.

`products/PRODUCT/attach.py` logs in to Consul, Nomad and Vault.
"""
