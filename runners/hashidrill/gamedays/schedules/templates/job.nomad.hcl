# Written by `hashidrill schedule`. Register it with `nomad job run @@name@@.nomad.hcl`, or with --submit.
# Its clients need the raw_exec driver: hashidrill creates namespaces.
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
    # a failed run is a finding, and is not repeated
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

      # `nomad var put nomad/jobs/@@name@@ notify=URL` sets a webhook for verdicts that turn to FAIL
@@tokens@@
      template {
        data        = <<-EOF
@@known@@
          EOF
        destination = "${NOMAD_SECRETS_DIR}/notify.env"
        env         = true
        change_mode = "noop" # a new URL applies to the next run: it does not restart this run
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
