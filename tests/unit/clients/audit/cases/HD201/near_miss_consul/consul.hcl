consul {
  address = "127.0.0.1:8501"
  ssl     = true
}
