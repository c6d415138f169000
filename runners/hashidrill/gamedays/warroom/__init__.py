"""What people see of a run or a game day in a browser while it goes on: one page, served on the loopback.

What may be seen of an event is said in `hashidrill.core.protocols.events`; what a report shows afterwards is in
`reports/`. Whoever plays runs tells a `room.Room`, which never waits for a browser.
"""
