job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    
    task "web" {
      driver = "docker"
      template {
        destination = "local/web.conf"
        data        = <<-EOF
          {{ env "service" }} {{ .Data.key }} service = 1
        EOF
      }
      config {
        image = "web:1.0"
      }
    }
  }
}
