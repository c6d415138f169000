consul {
  address = "10.0.0.1:8500"
  retry {
    enabled = false # <- HD401
  }
}
template {
  source      = "web.ctmpl"
  destination = "web.conf"
}
