"""A client without any jitter, in a separate process: it sends a request, sleeps a given gap, and repeats.

    python reference_client.py URL WORK_S GAP_S...

The variation of its gaps is what this machine adds. Around each gap it uses as much CPU time as the tested client
(WORK_S, half before and half after), because a busy client waits for a processor. It only uses a few modules of the
standard library, so that it starts at once.
"""

import socket
import sys
import time

_REQUEST = b"GET /v1/kv/reference HTTP/1.1\r\nHost: tap\r\nContent-Length: 0\r\n\r\n"
_TIMEOUT_S = 60
_LEAST_WORK_S, _LEAST_SHARE = 0.004, 0.01
"""The least work: about the CPU time of Python's requests, but at most that share of the gap."""
_MOST_SHARE = 0.05
"""The most work, as a share of the gap: twenty reference clients must not use up the machine."""


def main() -> None:
    host, _, port = sys.argv[1].rpartition("/")[2].partition(":")
    asked_s, *gaps_s = (float(word) for word in sys.argv[2:])
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        for gap_s in [*gaps_s, 0.0]:
            connection.sendall(_REQUEST)
            connection.recv(65536)
            work_s = max(min(asked_s, _MOST_SHARE * gap_s), min(_LEAST_WORK_S, _LEAST_SHARE * gap_s)) / 2
            work(work_s)
            time.sleep(gap_s)
            work(work_s)


def work(seconds: float) -> None:
    """Keep a processor busy for this long."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


if __name__ == "__main__":
    main()
