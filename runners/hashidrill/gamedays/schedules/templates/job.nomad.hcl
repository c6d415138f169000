# Written by `hashidrill schedule`. Register it with `nomad job run @@name@@.nomad.hcl`, or with --submit.
# Its clients need the raw_exec driver: hashidrill makes namespaces of its own.
job "@@name@@" {
  type        = "batch"
  datacenters = ["*"]

  periodic {
    crons            = [@@cron@@]
    time_zone        = @@zone@@
    prohibit_overlap = true
  }
@@constraint@@

  group "drill" {
    # a run that fails is a finding: it is not run again
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "hashidrill" {
      driver = "raw_exec"
@@user@@

      config {
        command  = @@command@@
        args     = [@@arguments@@]
        work_dir = @@directory@@
      }

      env {
@@environment@@
      }

      # `nomad var put nomad/jobs/@@name@@ notify=URL` has a webhook told when a verdict turns to FAIL
@@tokens@@
      template {
        data        = <<-EOF
@@known@@
          EOF
        destination = "${NOMAD_SECRETS_DIR}/notify.env"
        env         = true
        change_mode = "noop" # a new URL is for the next run: this one is not restarted for it
      }

      # an interrupted run reverts its faults first; a client allows max_kill_timeout at most, 30 s by default
      kill_signal  = "SIGINT"
      kill_timeout = "30s"

      resources {
        cpu    = 1000
        memory = 1024
      }
    }
  }
}
