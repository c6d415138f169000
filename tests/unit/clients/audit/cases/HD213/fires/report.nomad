job "web" {
  datacenters = ["dc1"]
  type        = "batch"
  
  group "web" { # <- HD213
    
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
