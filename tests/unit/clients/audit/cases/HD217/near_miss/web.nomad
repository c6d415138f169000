job "web" {
  datacenters = ["dc1"]
  type        = "service"
  update {
    max_parallel = 2
    auto_revert  = true
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
