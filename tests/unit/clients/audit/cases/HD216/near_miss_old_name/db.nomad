job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    volume "data" {
      type   = "host"
      source = "data"
    }
    stop_after_client_disconnect = "5m"
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
