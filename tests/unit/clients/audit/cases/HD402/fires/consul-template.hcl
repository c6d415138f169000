consul {
  address = "10.0.0.1:8500"
  retry {
    max_backoff = 0 # <- HD402
  }
}
template {
  source      = "web.ctmpl"
  destination = "web.conf"
}
