"""A Prometheus that watches the other agents of a local datacenter, to test alerting rules."""
