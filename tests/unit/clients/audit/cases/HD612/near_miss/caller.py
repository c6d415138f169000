from urllib3.util.retry import Retry

policy = Retry(total=3, backoff_factor=0.5, status_forcelist=[500, 503])
