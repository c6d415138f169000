"""Chaos Mesh in a local datacenter: a Kubernetes control plane without nodes, and a chaosd on each host.

`kubernetes/chaos_mesh/` has its faults, `chaos_mesh.physical.*`, for local and attached hosts.
"""

NAMESPACE = "chaos-mesh"
"""The namespace of the controller and of the objects of experiments."""
