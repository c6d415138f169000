vault { # <- HD403
  address = "https://vault:8200"
}
template {
  source      = "web.ctmpl"
  destination = "web.conf"
}
