"""Litmus as injector: its ChaosEngines, their targets, and the kinds of faults that they carry out.

A ChaosResult is reported, not believed: without a probe it says Pass, whatever the experiment did. `observing.py` and
`answers.py` have the proofs, `kubernetes/kubernetes/` the API client.
"""
