"""Namespaces and cgroups that the kernel takes away when the runner dies, and calls into them. No Consul, no YAML."""
