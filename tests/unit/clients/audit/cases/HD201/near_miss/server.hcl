data_dir = "/opt/nomad"
server {
  enabled          = true
  bootstrap_expect = 3
  server_join {
    retry_join = ["10.0.0.1"]
  }
}
