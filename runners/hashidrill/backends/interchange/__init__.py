"""Experiments of Chaos Mesh and Litmus as ours, and ours as theirs: text alone, nobody is asked.

What does not go over is always said: `lost` where the rest still makes sense, an error where it does not. Running
theirs through their own controllers is in `backends/chaos_mesh/`.
"""
