"""py-consul as it comes: one request by way of requests, no retry; a timeout of 30 s since 1.8."""

import consul

index, entry = consul.Consul().kv.get("hashidrill/retry")  # reads CONSUL_HTTP_ADDR
if entry is None:
    raise SystemExit("the key is not there")
