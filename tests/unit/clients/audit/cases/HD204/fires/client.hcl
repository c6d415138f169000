client {
  enabled = true
  servers = ["10.0.0.1"]
  template {
    vault_retry {
      attempts    = 0
      backoff     = "250ms"
      max_backoff = "0s" # <- HD204
    }
  }
}
