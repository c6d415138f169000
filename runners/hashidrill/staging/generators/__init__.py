"""Several load generators that count as one: on hosts of a datacenter, started at one instant, merged on one clock.

`conductor` is the program that the engine starts in the place of one generator, and speaks as one; `worker` is the
program on each host, around the same generator (`core/loads/in_generator.py`). What a load offers is in `core/loads/`.
"""
