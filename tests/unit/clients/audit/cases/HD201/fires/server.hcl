data_dir = "/opt/nomad"
server { # <- HD201
  enabled          = true
  bootstrap_expect = 3
}
