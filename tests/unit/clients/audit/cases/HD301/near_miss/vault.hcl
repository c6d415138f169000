listener "tcp" {
  address = "0.0.0.0:8200"
}
api_addr     = "https://10.0.0.1:8200"
cluster_addr = "https://10.0.0.1:8201"
storage "raft" {
  path    = "/opt/vault/data"
  node_id = "vault-1"
  retry_join {
    leader_api_addr = "https://10.0.0.2:8200"
  }
}
