"""Two sides of one experiment, run again and again: what differs between them, and how sure is that?

It knows figures and rounds. What a configuration is, and what a pipeline does with the answer, is the gate's.
"""
