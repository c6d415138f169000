job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    service {
      name = "web"
      port = "http"
      
      check { # <- HD215
        type     = "http"
        path     = "/health"
        interval = "10s"
        timeout  = "2s"
        check_restart {
          limit = 0
        }
      }
    }
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
