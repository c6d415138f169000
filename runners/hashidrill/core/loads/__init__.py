"""How any load keeps its rate: schedule, arrivals, HTTP, the load generator, and clients' commands behind a tap.

What a load asks of Consul is in `products/consul/loads/`.
"""
