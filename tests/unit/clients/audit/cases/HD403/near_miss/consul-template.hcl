vault {
  address = "10.0.0.1:8500"
  retry {
    attempts = 4
  }
}
template {
  source      = "web.ctmpl"
  destination = "web.conf"
}
