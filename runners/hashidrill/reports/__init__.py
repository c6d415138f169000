"""Shows a run in progress and after its verdict: on a terminal, in HTML and in Markdown. `core/judging/` says
what a verdict means.
"""
