import time

import nomad

client = nomad.Nomad(host="10.0.0.1")  # <- HD604


def wait_for(path):
    while True:
        try:
            return path.read_text()
        except OSError:
            time.sleep(1)


client.jobs.get_jobs()
