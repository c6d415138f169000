"""A trivial HTTP server that answers `true` at once, and during a planted stall not at all until it ends.

    python stalling_server.py [STALL_AFTER_S STALL_FOR_S]

Prints its port; then, with a stall, when it began and ended (CLOCK_MONOTONIC, nanoseconds). The stall is counted from
the first request.
"""

import asyncio
import sys
import time

import uvloop

REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\ntrue"


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Stall:
    def __init__(self, after_s, for_s):
        self.after_s, self.for_s = after_s, for_s
        self.window = None
        self.waiting = []

    def holds(self, transport):
        loop = asyncio.get_running_loop()
        if self.window is None and self.for_s:
            begins = loop.time() + self.after_s
            self.window = (begins, begins + self.for_s)
            loop.call_at(self.window[1], self._end)
        if self.window is None or not self.window[0] <= loop.time() < self.window[1]:
            return False
        self.waiting.append(transport)
        return True

    def _end(self):
        end_ns = time.monotonic_ns()
        self.window = (0, 0)
        for transport in self.waiting:
            transport.write(REPLY)
        say(end_ns - int(self.for_s * 1e9), end_ns)


class Server(asyncio.Protocol):
    def __init__(self, stall):
        self._stall, self._data = stall, b""

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            _, found, length = head.partition(b"content-length:")
            whole = end + 4 + (int(length.split(b"\r\n")[0]) if found else 0)
            if len(self._data) < whole:
                return
            self._data = self._data[whole:]
            if not self._stall.holds(self._transport):
                self._transport.write(REPLY)


async def main():
    after_s, for_s = (float(word) for word in sys.argv[1:3] or ("0", "0"))
    stall = Stall(after_s, for_s)
    server = await asyncio.get_running_loop().create_server(lambda: Server(stall), "127.0.0.1", 0, backlog=4096)
    say(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
