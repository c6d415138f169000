"""Everything that knows Consul: settings, agents, API, probes, faults, loads, snapshots, checks of experiments."""
