job "web" {
  datacenters = ["dc1"]
  type        = "service"
  
  group "web" {
    
    task "web" {
      driver = "docker"
      template {
        destination = "local/web.conf"
        data        = <<-EOF
          {{ with secret "kv/data/web" }}{{ .Data.data.password }}{{ end }}
        EOF
      }
      config {
        image = "web:1.0"
      }
    }
  }
}
