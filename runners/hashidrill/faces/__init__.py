"""The user interfaces: the command line, the pytest plugin, and what Chaos Toolkit calls."""
