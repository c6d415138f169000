vault {
  address = "https://vault:8200"
  retry {
    num_retries = -1 # <- HD303
  }
}
auto_auth {
  method "approle" {}
}
