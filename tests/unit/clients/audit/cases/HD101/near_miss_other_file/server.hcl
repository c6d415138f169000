server = true
bootstrap_expect = 3
