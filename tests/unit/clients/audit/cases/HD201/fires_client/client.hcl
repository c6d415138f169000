data_dir = "/opt/nomad"
client { # <- HD201
  enabled = true
}
consul {
  client_auto_join = false
}
