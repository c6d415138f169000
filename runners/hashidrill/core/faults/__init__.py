"""Faults on any host: disk, network, links, processes, CPU. `base` is the class to build a fault on.

Faults of a product are in `products/PRODUCT/faults/`.
"""
