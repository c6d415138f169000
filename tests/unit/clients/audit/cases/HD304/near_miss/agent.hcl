vault {
  address = "https://vault:8200"
  retry {
    num_retries = 0
  }
}
auto_auth {
  method "approle" {}
}
template {
  source      = "/etc/vault/web.ctmpl"
  destination = "/run/web.conf"
}
template_config {
  exit_on_retry_failure = true
}
