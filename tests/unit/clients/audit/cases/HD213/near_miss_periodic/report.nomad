job "web" {
  datacenters = ["dc1"]
  type        = "batch"
  periodic {
    crons = ["@daily"]
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
