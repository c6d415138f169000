"""What breaks Nomad in ways of its own: nodes, leaders, jobs. Not what breaks any host.

A new module goes into MODULES, with its kinds.
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
