"""Samples every host periodically: processes, disk. Probes of a product are in `products/PRODUCT/`."""
