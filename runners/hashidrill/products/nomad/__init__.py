"""All that hashidrill knows of Nomad: agents, roles, probes, faults and loads of its own.

What breaks any host is in hashidrill.faults.
"""
