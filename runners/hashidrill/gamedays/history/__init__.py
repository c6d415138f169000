"""Keeps every run and game day in one SQLite file: trends, what changed since the last pass, what is flaky.

`core/judging/` judges runs; `gamedays/schedules/` says when the next one begins.
"""
