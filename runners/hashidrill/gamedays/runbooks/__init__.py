"""`hashidrill rehearse`: follows a runbook on a broken datacenter, and judges whether it helps.

The experiment says what breaks and when users are well.
"""
