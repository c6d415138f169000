server {
  enabled          = true
  bootstrap_expect = 3
  start_join       = []
  server_join {
    retry_join = ["10.0.0.1"]
  }
}
