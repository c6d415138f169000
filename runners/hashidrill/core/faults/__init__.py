"""Faults on any host: disk, network, links, processes, CPU, memory. Build new faults on `base`."""
