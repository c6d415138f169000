"""hashidrill: game days for Consul, Nomad and Vault. `hashidrill.abc` has the protocols, `hashidrill.engine` the run."""

__version__ = "0.1.0"
