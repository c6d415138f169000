job "web" {
  datacenters = ["dc1"]
  type        = "batch"
  
  group "web" {
    reschedule {
      attempts = 5
      interval = "1h"
    }
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
