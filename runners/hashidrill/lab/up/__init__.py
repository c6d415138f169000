"""`hashidrill up`: a datacenter that stays, the process that keeps it, and what finds it again. No runs, no faults."""
