"""A client without any jitter, in a process of its own: it asks, sleeps a given gap, and asks again.

    python reference_client.py URL GAP_S...

What its gaps vary by is what this machine adds. Standard library only, and little of it, so that it starts at once.
"""

import socket
import sys
import time

_REQUEST = b"GET /v1/kv/reference HTTP/1.1\r\nHost: tap\r\nContent-Length: 0\r\n\r\n"
_TIMEOUT_S = 60


def main() -> None:
    host, _, port = sys.argv[1].rpartition("/")[2].partition(":")
    gaps_s = [float(word) for word in sys.argv[2:]]
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        for gap_s in [*gaps_s, 0.0]:
            connection.sendall(_REQUEST)
            connection.recv(65536)
            time.sleep(gap_s)


if __name__ == "__main__":
    main()
