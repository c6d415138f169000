"""How a run is launched and healed in an existing datacenter."""
