"""Chaos Mesh as injector: its objects, their targets, and the kinds of faults that they carry out.

Its conditions are reported, but they prove nothing: AllRecovered is true even before an injection. The proofs are in
`kubernetes/pod_observers.py`, and the API client is `kubernetes/client.py`.
"""
