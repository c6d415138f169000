"""Chaos Mesh and Litmus, which inject faults for us through a Kubernetes API server.

We never believe their status: a fault is in force once our own observer sees it. `reached.py` says what both add to the
hosts of an attached datacenter.
"""
