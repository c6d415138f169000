"""The retry battery: runs a command behind a tap with each fault, and says whether and how well it retries.

`battery.run_battery` runs the command and judges it; the tap (`core/tap/`) fails attempts by plan and records them.
"""
