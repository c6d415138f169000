data_dir         = "/opt/consul"
server           = true # <- HD101
bootstrap_expect = 3
retry_interval   = "15s"
