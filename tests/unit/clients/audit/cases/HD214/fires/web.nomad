job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    
    task "web" {
      driver = "docker"
      template { # <- HD214
        destination = "local/web.conf"
        data        = <<-EOF
          {{ range service "db" }}server {{ .Address }};{{ end }}
        EOF
      }
      config {
        image = "web:1.0"
      }
    }
  }
}
