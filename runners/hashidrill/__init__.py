"""hashidrill: game days for the HashiStack. `hashidrill.abc` has the protocols, `hashidrill.engine.run` the run."""

__version__ = "0.1.0"
