job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    restart {
      attempts = 0
    }
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
