"""Faults on any host: disk, network, links, processes, CPU. `base` is the class to build a fault on.

Faults of a product are in `products/PRODUCT/faults/`. A new module is listed in MODULES, with its kinds.
"""

MODULES = {
    "noop": ("noop",),
    "disk": ("disk.latency", "disk.error", "disk.full", "disk.bandwidth"),
    "process": ("process.pause", "process.kill", "process.restart"),
    "cpu": ("cpu.throttle",),
    "network": ("network.partition", "network.loss", "network.block"),
    "toxics": (
        "network.latency",
        "network.bandwidth",
        "network.timeout",
        "network.reset",
        "network.slow_close",
        "network.slicer",
        "network.limit_data",
        "toxiproxy.toxic",
    ),
    "tap": ("tap.fail",),
}
"""Module to the kinds in its KINDS, so that naming one kind imports only one module."""
