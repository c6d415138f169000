server {
  enabled          = true
  bootstrap_expect = 3
  server_join {
    start_join = ["10.0.0.1"] # <- HD203
  }
}
