client {
  enabled = true
  server_join {
    retry_join = ["10.0.0.1"]
    retry_max  = 3 # <- HD202
  }
}
