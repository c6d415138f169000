server = true
bootstrap_expect = 3
data_dir = "/opt/consul"
retry_join = ["10.1.0.1"]
datacenter = "dc2"
primary_datacenter = "dc1"
connect {
  enabled                            = true
  enable_mesh_gateway_wan_federation = true
}
