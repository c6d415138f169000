"""What asks something of Nomad: jobs that are dispatched, builds, replicas that are kept running, registered services.

A new module goes into MODULES, with its kinds.
"""

MODULES = {
    "artifacts": ("nomad.artifacts",),
    "churn": ("nomad.job.churn",),
    "dispatch": ("nomad.dispatch",),
    "replicas": ("nomad.replicas",),
    "services": ("nomad.services",),
}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
