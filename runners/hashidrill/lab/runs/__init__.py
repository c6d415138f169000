"""How a run is launched and healed in a local datacenter."""
