retry_join = ["10.0.0.1"]
# hashidrill: ignore HD102 -- started by a script that counts on the exit code
retry_max = 3
data_dir  = "/opt/consul"
