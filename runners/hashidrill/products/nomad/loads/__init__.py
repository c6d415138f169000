"""Loads on Nomad: dispatched jobs, builds, replicas that must keep running, registered services."""
