"""Small programs of our own to break: a store, write-through caches before it, services with a pool of workers.

What they do wrong is what real ones did, and each can be told to do it right. Products have rooms of their own.
"""

MODULES = {"loads": ("sample.get",)}
"""Module to the kinds in its KINDS: whoever names one kind imports one module."""
