data_dir = "/opt/consul"
server   = true # <- HD101
