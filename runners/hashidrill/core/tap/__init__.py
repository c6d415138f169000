"""The tap: a proxy in front of a client, which sees each attempt and can fail it."""
