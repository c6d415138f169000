"""An existing datacenter: how it is found, armed, reached and loaded, and how a run is launched and healed there."""
