job "leader" {
  group "leader" {
    task "leader" {
      driver = "exec"
      config { # <- HD105
        command = "/usr/bin/consul"
        args    = ["lock", "-monitor-retry", "0", "locks/leader", "${NOMAD_TASK_DIR}/worker"]
      }
    }
  }
}
