Kind = "service-resolver"
Name = "payments"
Meta {
  critical = "true"
}
Failover = {
  "*" = { Datacenters = ["dc2"] }
}
