"""The user interfaces: the command line and the pytest plugin."""
