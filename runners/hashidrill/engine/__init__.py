"""How a run goes, from outside (`launch`) and inside the sandbox (`run`: its docstring numbers the steps).

What YAML says is in `experiment/`, what a run leaves in `recording/`, what that means in `judging/`.
"""
