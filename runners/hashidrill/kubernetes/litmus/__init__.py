"""Litmus as injector: its ChaosEngines, their targets, and the kinds of faults that they carry out.

A ChaosResult is reported, but it proves nothing: without a probe it says Pass, whatever the experiment did. The proofs
are in `kubernetes/pod_observers.py`, and the API client is `kubernetes/client.py`.
"""
