"""Carries a fault to a host of an existing datacenter, and ends it there when the runner is gone.

`inside/` runs on that host: Python 3.8, standard library only, sent as text (`shell.py`). What a capability needs of a
product, like its agent's command line, the product says (`staging/attach/product.py`).
"""
