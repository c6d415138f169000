"""Chaos Mesh and Litmus, which inject faults for hashidrill through a Kubernetes API server.

Their status is never proof: a fault is in force once hashidrill's own observer sees it.
"""
