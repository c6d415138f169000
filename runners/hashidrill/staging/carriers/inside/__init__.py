"""Programs on a host of an attached datacenter: Python 3.8 or later, standard library only, no import of other rooms.

The programs are sent as text and run from memory; nothing is installed. An agent writes one file, its note in /run,
which a restart of the host removes like everything that a fault changes.
"""
