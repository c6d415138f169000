"""Programs under test: the battery that says whether a client retries, and the audit of configuration and code."""
