"""Chaos Mesh in a local datacenter: a control plane of Kubernetes without nodes, and a chaosd on each host.

Its faults, `chaos_mesh.physical.*`, are those of `kubernetes/chaos_mesh/`: the same on hosts of ours and of others.
"""
