"""Existing datacenters, reached by address: which one is meant, what is in it, and how to ask it.

`products/PRODUCT/attach.py` logs in to Consul, Nomad and Vault.
"""
