"""How a fault reaches a host of an attached datacenter, and how it ends there when nobody asks any more.

`inside/` runs on that host, where no hashidrill is installed: plain Python 3.8 of the standard library alone, sent as
text (`bundle.py`). What each capability needs of a product, like its agent's command line, the product says itself
(`datacenter.attach.product.Attachable`). Which faults there are is in `core/faults/`.
"""
