job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" { # <- HD216
    volume "data" {
      type   = "host"
      source = "data"
    }
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
