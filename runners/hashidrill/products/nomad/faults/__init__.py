"""Faults of Nomad: nodes, leaders, jobs. `core/faults/` has those of any host.

A new module is listed in MODULES, with its kinds.
"""

MODULES = {
    "nodes": ("nomad.node.eligibility", "nomad.node.drain"),
    "black_hole": ("nomad.node.black_hole",),
    "disconnect": ("nomad.node.disconnect",),
    "leader": ("nomad.leader.transfer",),
    "job": ("nomad.job.stop",),
    "snapshot": ("nomad.snapshot.save", "nomad.snapshot.restore"),
    "config": ("nomad.config",),
    "allocs": ("nomad.alloc.fail", "nomad.alloc.signal"),
}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
