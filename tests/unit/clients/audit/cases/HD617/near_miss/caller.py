from tenacity import retry, stop_after_delay


@retry(stop=stop_after_delay(30))
def fetch():
    raise NotImplementedError
