"""`hashidrill lab up`: keeps a datacenter running, and finds it again. No runs, no faults."""
