consul {
  address = "10.0.0.1:8500"
  retry {
    enabled  = true
    attempts = 5
  }
}
template {
  source      = "web.ctmpl"
  destination = "web.conf"
}
