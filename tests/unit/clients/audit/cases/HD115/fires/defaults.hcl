Kind = "service-defaults"
Name = "web"
UpstreamConfig = {
  Defaults = {
    PassiveHealthCheck = {
      Interval    = "10s"
      MaxFailures = 5
      EnforcingConsecutive5xx = 0 # <- HD115
    }
  }
}
