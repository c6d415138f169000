"""Training: a real datacenter gets sick for a hidden reason, a trainee repairs it, and a card says how well.

`core/engine/` does the run, `core/judging/` judges it, `core/faults/` breaks the datacenter.
"""
