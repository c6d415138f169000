"""What every run needs: protocols, experiment, engine, recording, judging, faults, loads, tap, probes, comparison.

Nothing here knows a product, a datacenter or a terminal.
"""
