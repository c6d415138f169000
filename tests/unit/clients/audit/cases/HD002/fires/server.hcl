# hashidrill: ignore HD102 -- was true last year
retry_join = ["10.0.0.1"]
data_dir   = "/opt/consul"
