"""Small programs to break: a store, write-through caches in front of it, services with a pool of workers.

They make the mistakes that real programs made; an option makes each of them do it right.
"""
