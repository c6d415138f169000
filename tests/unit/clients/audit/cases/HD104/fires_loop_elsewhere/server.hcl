data_dir = "/opt/consul"
retry_join = ["10.0.0.1"]
limits {
  request_limits {
    mode       = "enforcing" # <- HD104
    read_rate  = 500
    write_rate = 200
  }
}
