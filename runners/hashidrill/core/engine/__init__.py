"""How a run goes: `run` does it, and its docstring numbers the steps. Launching is in `lab/runs/` and `staging/runs/`.

`core/experiment/` reads the YAML, `core/recording/` keeps what a run leaves, `core/judging/` says what it means.
"""
