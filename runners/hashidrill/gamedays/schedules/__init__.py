"""When experiments and game days run by themselves: a cron expression as a Nomad job, a GitHub workflow or a timer.

It writes what others run. What came of those runs is in history/.
"""
