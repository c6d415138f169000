"""What a fault, a load, a probe, a product, a host must be able to do, and the registry that finds them by name."""
