"""A datacenter on this machine: one network namespace per host, with its disks, links and processes."""
