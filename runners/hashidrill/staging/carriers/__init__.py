"""Carries a fault to a host of an attached datacenter, and ends it there when the runner is gone.

`inside/` runs on that host: Python 3.8, standard library only, sent as text (`shell.py`). The product provides
product-specific facts, like its agent's command line (`staging/attach/product.py`).
"""
