job "web" {
  datacenters = ["dc1"]
  type        = "service"
  update {
    auto_revert = true
  }
  group "web" {
    update {
      canary = 1
    }
    task "web" {
      driver = "docker"
      
      config {
        image = "web:1.0"
      }
    }
  }
}
