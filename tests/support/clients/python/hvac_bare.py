"""hvac as it comes: one request by way of requests, no retry, a timeout of 30 s."""

import os

import hvac

hvac.Client(os.environ["VAULT_ADDR"]).secrets.kv.v1.read_secret("hashidrill/retry", mount_point="kv")
