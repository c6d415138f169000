"""A real node of Kubernetes for tests, with Chaos Mesh and Litmus."""
