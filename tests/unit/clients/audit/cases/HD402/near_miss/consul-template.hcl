consul {
  address = "10.0.0.1:8500"
  retry {
    max_backoff = "30s"
  }
}
template {
  source      = "web.ctmpl"
  destination = "web.conf"
}
