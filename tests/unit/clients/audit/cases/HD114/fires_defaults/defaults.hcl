Kind = "service-defaults"
Name = "payments"
Protocol = "http"
Meta { critical = "true" }
