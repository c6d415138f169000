from urllib3.util.retry import Retry

policy = Retry(total=0)
