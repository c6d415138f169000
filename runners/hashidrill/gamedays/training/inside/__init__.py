"""What runs in the sandbox, next to the hosts, with the standard library alone."""
