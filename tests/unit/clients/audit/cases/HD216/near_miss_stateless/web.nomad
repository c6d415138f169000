job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
