"""Whether a change survives: `gate`, `bisect`, `capacity`."""
