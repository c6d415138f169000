
  # the paths below are those of this machine
  constraint {
    attribute = "${attr.unique.hostname}"
    value     = @@node@@
  }
