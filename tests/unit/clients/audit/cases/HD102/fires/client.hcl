data_dir   = "/opt/consul"
retry_join = ["provider=aws tag_key=consul tag_value=server"]
retry_max  = 5 # <- HD102
