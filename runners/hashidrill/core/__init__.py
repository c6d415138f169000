"""The parts that every run needs: protocols, experiment, engine, recording, judging, faults, loads, tap, probes,
comparison.

This room imports no product, no datacenter and no terminal.
"""
