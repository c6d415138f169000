"""`hashidrill lab up`: keeps a datacenter running, and finds it again, without runs or faults."""
