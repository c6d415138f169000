"""Chaos Mesh as injector: its objects, their targets, and the kinds of faults that they carry out.

Its conditions are reported, not believed: AllRecovered is true before anything is injected, too. `observing.py` has the
proofs, `kubernetes/kubernetes/` the API client.
"""
