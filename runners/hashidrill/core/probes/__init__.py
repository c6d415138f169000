"""Probes that sample each host's processes and disk, and declared probes. A product's are in `products/PRODUCT/`."""
