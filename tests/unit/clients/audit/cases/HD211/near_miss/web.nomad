job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    restart {
      attempts = 0
    }
    task "web" {
      driver = "docker"
      restart {
        attempts = 3
      }
      artifact {
        source = "https://example.com/web.tar.gz"
      }
      config {
        image = "web:1.0"
      }
    }
  }
}
