"""Litmus as injector: its ChaosEngines, their targets, and the kinds of faults that they carry out.

A ChaosResult is reported, not believed: without a probe it says Pass, whatever the experiment did. `observing.py` and
`answers.py` have the proofs, `kubernetes/kubernetes/` the API client.
"""

MODULES = {
    "pods": ("litmus.pod_delete", "litmus.container_kill"),
    "network": ("litmus.pod_network_latency", "litmus.pod_network_loss", "litmus.pod_network_corruption"),
    "http": (
        "litmus.pod_http_latency",
        "litmus.pod_http_reset_peer",
        "litmus.pod_http_status_code",
        "litmus.pod_http_modify_header",
        "litmus.pod_http_modify_body",
    ),
    "stress": ("litmus.pod_cpu_hog", "litmus.pod_memory_hog", "litmus.pod_io_stress", "litmus.disk_fill"),
    "node": ("litmus.node_drain",),
    "experiment": ("litmus.experiment",),
}
"""Module to the kinds in its KINDS, so that naming one kind imports only one module."""
