job "web" {
  datacenters = ["dc1"]
  type        = "service"
  update {
    max_parallel = 0
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
