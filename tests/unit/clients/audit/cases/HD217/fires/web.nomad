job "web" {
  datacenters = ["dc1"]
  type        = "service"
  update { # <- HD217
    max_parallel = 2
    canary       = 1
  }
  group "web" {
    
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
