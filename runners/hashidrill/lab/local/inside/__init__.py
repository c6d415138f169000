"""What runs inside the sandbox: init (PID 1), one hostd and one canary a host, and diskd.

Standard library only, so that each of them starts in a few tens of milliseconds.
"""
