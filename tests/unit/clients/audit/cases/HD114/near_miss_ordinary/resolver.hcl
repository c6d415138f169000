Kind = "service-resolver"
Name = "wiki"
ConnectTimeout = "5s"
