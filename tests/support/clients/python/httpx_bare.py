"""httpx as it comes: one request, no retry, and a timeout of 5 s by default."""

import sys

import httpx

httpx.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry").raise_for_status()
