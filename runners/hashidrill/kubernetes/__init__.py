"""Systems of somebody else that inject for us: Chaos Mesh and Litmus, through a Kubernetes API server.

They are never believed: a fault of theirs is in force once an observer of ours sees it. How hosts are reached without
them is in `staging/carriers/`; `reached.py` says what both add to the hosts of an attached datacenter.
"""
