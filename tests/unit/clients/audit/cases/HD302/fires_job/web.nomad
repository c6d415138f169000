job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    
    task "web" {
      driver = "docker"
      env {
        VAULT_MAX_RETRIES = "0" # <- HD302
      }
      config {
        image = "web:1.0"
      }
    }
  }
}
