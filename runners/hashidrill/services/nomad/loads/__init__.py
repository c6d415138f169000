"""What asks something of Nomad: jobs that are dispatched, replicas that are kept running, services that are registered.

A new module goes into MODULES, with its kinds.
"""

MODULES = {
    "dispatch": ("nomad.dispatch",),
    "replicas": ("nomad.replicas",),
    "services": ("nomad.services",),
}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
