data_dir  = "/opt/consul" # <- HD101
node_name = "web-1"
