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
      RetryOnStatusCodes = [429]
      NumRetries = 2
    }
  },
]
