"""Several load generators that count as one: on hosts of a datacenter, started together, merged on one clock.

The engine starts `conductor` in place of a generator; `worker` runs on each host, around the same generator
(`core/loads/in_generator.py`).
"""
