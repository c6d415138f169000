"""YAML under tests/ is data: `pytest tests` must not take a planted experiment for one to run."""

collect_ignore_glob = ["*.yaml", "*.yml"]
