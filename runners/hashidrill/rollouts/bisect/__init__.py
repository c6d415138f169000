"""Which change breaks an experiment: the smallest set of changed keys, or the first version or commit that breaks it.

The search, its certainty and its log are pure: they ask for runs of named candidates and know nothing of datacenters.
How a candidate is made and run is in `candidates`, and what counts as broken in `broken`. How a single run goes is in
`core/engine/`; how two sides are compared is in `core/compare/`.
"""
