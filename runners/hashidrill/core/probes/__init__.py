"""Periodic samples of any host: processes, disk. Probes of one product are in that product's room."""
