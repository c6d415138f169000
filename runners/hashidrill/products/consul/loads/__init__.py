"""Traffic that only Consul understands: KV, locks, checks, watches, streams. How a load keeps its rate is in
`core/loads/`.

A new module goes into MODULES, with its kinds.
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
