"""Chaos Mesh as injector: its objects, their targets, and the kinds of faults that they carry out.

Its conditions are reported, not believed: AllRecovered is true before anything is injected, too. `observing.py` has the
proofs, `kubernetes/kubernetes/` the API client.
"""

MODULES = {
    "pods": ("chaos_mesh.pod_kill", "chaos_mesh.pod_failure", "chaos_mesh.container_kill", "chaos_mesh.network.delay"),
    "asked": ("chaos_mesh.time", "chaos_mesh.http.abort", "chaos_mesh.http.delay"),
    "volumes": ("chaos_mesh.io.latency",),
    "physical": ("chaos_mesh.physical.process",),
    "machine_disk": ("chaos_mesh.physical.disk_fill",),
    "machine_cpu": ("chaos_mesh.physical.cpu",),
    "machine_network": ("chaos_mesh.physical.partition", "chaos_mesh.physical.bandwidth"),
    "resource": ("chaos_mesh.resource",),
}
"""Module to the kinds in its KINDS, so that naming one kind imports only one module."""
