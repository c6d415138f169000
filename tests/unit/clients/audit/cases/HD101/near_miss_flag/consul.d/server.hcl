server = true
bootstrap_expect = 3
data_dir = "/opt/consul"
