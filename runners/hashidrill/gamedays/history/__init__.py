"""Every run and every game day in one SQLite file: trends, what changed since it last passed, flaky or broken.

It reads recordings and verdicts, and keeps what outlives them. How a run is judged is for judging/ to say, and when
the next one begins for schedules/.
"""
