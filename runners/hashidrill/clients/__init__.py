"""Tests of clients: the battery that shows how a client retries, and the audit of configuration and code."""
