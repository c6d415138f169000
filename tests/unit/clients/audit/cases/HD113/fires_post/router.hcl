Kind = "service-router"
Name = "web"
Routes = [
  {
    Match {
      HTTP {
        PathPrefix = "/"
        Methods = ["GET", "POST"]
      }
    }
    Destination {
      Service = "web"
      NumRetries = 2
      RetryOnStatusCodes = [503] # <- HD113
    }
  },
]
