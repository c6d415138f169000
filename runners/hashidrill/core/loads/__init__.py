"""How every load keeps its rate: schedule, arrivals, HTTP client, load generator, and client commands behind a tap.

What a load asks of a product is in `products/PRODUCT/loads/`.
"""
