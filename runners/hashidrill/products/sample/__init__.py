"""Small programs to break: a store, write-through caches in front of it, services with a pool of workers.

They make mistakes that real programs made; an option of each program avoids its mistake.
"""
