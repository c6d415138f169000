"""How a run goes, from outside (`launch`) and inside the sandbox (`run`: its docstring numbers the steps).

What YAML says is in `core/experiment/`, what a run leaves in `core/recording/`, what that means in `core/judging/`.
"""
