"""Decides whether an attached datacenter may be touched, and what ends a run there."""
