from urllib3.util.retry import Retry

policy = Retry(total=3, status_forcelist=[503], allowed_methods=frozenset(["GET", "POST"]))  # <- HD614
