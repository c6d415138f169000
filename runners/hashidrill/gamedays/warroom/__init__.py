"""The war room: one page in a browser, on the loopback, that shows a run or a game day while it goes on.

`core/protocols/events.py` says who may see an event. A run reports events to a `Room`, which never waits for browsers.
"""
