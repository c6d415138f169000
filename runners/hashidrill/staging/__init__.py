"""An existing datacenter: how it is found, armed, reached and loaded, and how a run is launched and healed there.

`attach/` finds it, `interlocks/` arms and stops, `carriers/` brings a fault to a host and ends it there (`lease.py`),
`generators/` loads it from several machines, `runs/` launches and heals.
"""
