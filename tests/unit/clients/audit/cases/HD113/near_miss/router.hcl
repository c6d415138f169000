Kind = "service-router"
Name = "web"
Routes = [
  {
    Match {
      HTTP {
        PathPrefix = "/"
        Methods = ["GET", "HEAD"]
      }
    }
    Destination {
      Service = "web"
      NumRetries = 2
      RetryOn    = ["5xx"]
    }
  },
]
