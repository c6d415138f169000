import tenacity


@tenacity.retry(wait=tenacity.wait_fixed(1))  # <- HD617
def fetch():
    raise NotImplementedError
