import hvac

client = hvac.Client(url="https://vault:8200")  # <- HD603
