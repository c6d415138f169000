"""Loads on Nomad: dispatched jobs, builds, replicas that must keep running, registered services.

A new module is listed in MODULES, with its kinds.
"""

MODULES = {
    "artifacts": ("nomad.artifacts",),
    "churn": ("nomad.job.churn",),
    "dispatch": ("nomad.dispatch",),
    "replicas": ("nomad.replicas",),
    "services": ("nomad.services",),
}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
