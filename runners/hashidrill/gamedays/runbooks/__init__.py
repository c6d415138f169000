"""How is a runbook written, followed and judged? `hashidrill rehearse`.

Not in here: what breaks the datacenter, and when users are well; an experiment says both.
"""
