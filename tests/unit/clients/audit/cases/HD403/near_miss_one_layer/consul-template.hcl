vault {
  address = "10.0.0.1:8500"
  retry {
    attempts = 12
  }
}
template {
  source      = "web.ctmpl"
  destination = "web.conf"
}
