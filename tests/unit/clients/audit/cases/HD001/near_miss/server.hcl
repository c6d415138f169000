retry_join = ["10.0.0.1"]
retry_max  = 3 # hashidrill: ignore HD102 -- started by a script that counts on the exit code
data_dir   = "/opt/consul"
