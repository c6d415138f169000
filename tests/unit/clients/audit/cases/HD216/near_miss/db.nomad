job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    volume "data" {
      type   = "host"
      source = "data"
    }
    disconnect {
      lost_after = "1h"
      replace    = false
    }
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
