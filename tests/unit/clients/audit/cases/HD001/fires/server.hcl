# hashidrill: ignore HD102
retry_join = ["10.0.0.1"]
retry_max  = 3
data_dir   = "/opt/consul"
