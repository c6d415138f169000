"""What runs on a host of somebody else's: Python 3.8 or later, standard library alone, no import from other rooms.

It is sent as text and run from memory; nothing of it is installed. The one file that an agent writes is its note in
/run, which is gone after a restart of the host like everything that the faults change.
"""
