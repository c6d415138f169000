"""Training: a real datacenter that is sick for a reason that is hidden, a person who repairs it, and what became of it.

Not in it: how a run goes (engine), how it is judged (judging), how faults are made (faults).
"""
