"""A datacenter on this machine: one network namespace per host, with its disks, links and processes.

`inside/` runs in the sandbox (`lab/sandbox/`); `core/faults/` breaks hosts.
"""
