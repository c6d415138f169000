vault {
  address = "https://vault:8200"
  retry {
    num_retries = 0
  }
}
auto_auth {
  method "approle" {}
}
