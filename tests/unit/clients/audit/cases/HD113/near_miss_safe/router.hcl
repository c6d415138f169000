Kind = "service-router"
Name = "web"
Routes = [
  {
    Match {
      HTTP {
        PathPrefix = "/"
        
      }
    }
    Destination {
      Service = "web"
      NumRetries = 2
      RetryOn    = ["connect-failure", "refused-stream"]
    }
  },
]
