"""httpx with `HTTPTransport(retries=3)`: those are retries of connecting, and of nothing else."""

import sys

import httpx

with httpx.Client(transport=httpx.HTTPTransport(retries=3), timeout=1) as client:
    client.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry").raise_for_status()
