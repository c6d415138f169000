job "web" {
  datacenters = ["dc1"]
  type        = "system"
  
  group "web" {
    restart {
      attempts = 3
      mode     = "delay"
    }
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
