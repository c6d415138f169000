"""Reads experiments of Chaos Mesh and Litmus, and writes experiments in their formats. Text alone: no cluster is asked.

What is not translated is always said: `lost` where the rest still makes sense, an error where it does not. What runs
these objects through their own controllers is in `kubernetes/chaos_mesh/`.
"""
