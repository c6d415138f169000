"""The highest load, or other parameter, at which an SLO still holds: the search, and what it asks of each run.

It runs experiments through the engine's public door; how a single run goes is in `core/engine/`.
"""
