client {
  enabled = true
  servers = ["10.0.0.1"]
  template {
    vault_retry {
      attempts    = 3 # <- HD205
      backoff     = "250ms"
      max_backoff = "1m"
    }
  }
}
