"""A datacenter on this machine: one network namespace a host, its disks, links and processes. `inside/` runs in it.

The sandbox around all of it is in `lab/sandbox/`; what breaks a host is in `core/faults/`.
"""
