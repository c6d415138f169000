from tenacity import retry


@retry  # <- HD617
def fetch():
    raise NotImplementedError
