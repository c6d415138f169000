"""Loads on Consul: KV, locks, checks, watches, streams. `core/loads/` keeps their rate.

A new module is listed in MODULES, with its kinds.
"""

MODULES = {
    "kv": ("consul.kv.write", "consul.kv.read"),
    "cas": ("consul.kv.cas",),
    "locks": ("consul.lock",),
    "checks": ("consul.health_checks",),
    "views": ("consul.views",),
    "churn": ("consul.service.churn",),
    "watch": ("consul.watch",),
    "streams": ("consul.streams",),
    "metrics": ("consul.metrics.read",),
    "registrations": ("consul.service.registrations",),
}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
