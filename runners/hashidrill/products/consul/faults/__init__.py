"""Faults of Consul: leaders, agents, state, streams, configuration. `core/faults/` has those of any host.

A new module is listed in MODULES, with its kinds.
"""

MODULES = {
    "config": ("consul.config",),
    "leader": ("consul.leader.transfer", "consul.leader.avoid", "consul.leader.pin"),
    "agent": ("consul.agent.stop", "consul.server.replace"),
    "streams": ("consul.streams.gather",),
    "sessions": ("consul.session.expire",),
    "kv": ("consul.kv.bloat",),
    "snapshot": ("consul.snapshot.save", "consul.snapshot.restore"),
    "raft": ("consul.raft.bloat", "consul.raft.compact"),
}
"""Module to the kinds in its KINDS, so that naming one kind imports only one module."""
