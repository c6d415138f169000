"""Programs inside the sandbox: init (PID 1), one hostd and one canary per host, and diskd.

Standard library only, so that each starts in a few tens of milliseconds.
"""
