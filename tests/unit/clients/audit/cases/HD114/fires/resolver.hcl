Kind           = "service-resolver" # <- HD114
Name           = "payments"
ConnectTimeout = "5s"
Meta {
  critical = "true"
}
