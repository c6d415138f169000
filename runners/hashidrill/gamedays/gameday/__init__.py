"""A game day: people, experiments in order, what each of them predicted, what happened, and who does what next.

How a single run goes is not here (engine), nor what it is worth (judging).
"""
