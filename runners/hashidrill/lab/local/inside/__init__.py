"""Programs inside the sandbox: init (PID 1), one hostd and one canary per host, and diskd.

They use only the standard library, so that each starts in a few tens of milliseconds.
"""
