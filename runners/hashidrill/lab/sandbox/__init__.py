"""Namespaces and cgroups that the kernel removes when the runner dies, and the system calls for them."""
