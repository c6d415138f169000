"""A server of the small replicated store: `python -c SOURCE CONFIG`, with a JSON file as CONFIG.

It gives a node its clock, its files and its network, and answers a part of Consul's API: KV with compare-and-set and
locks, sessions, reads that are linearizable unless they say `stale`. Servers talk over UDP, because Raft survives lost
messages, and a TCP connection that outlives a partition would delay later messages.
"""

import asyncio
import base64
import contextlib
import json
import os
import pathlib
import random
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from hashidrill.products.sample.store import SLOW_S, TICK_S, Done, Entries, Entry, Fields, Node, State

LEADER = "/v1/status/leader"
_FORWARD_S, _ANSWER_S = 1.5, 3.0


class Files:
    """The files of a node in a folder: `vote`, `log` (JSON lines) and `snapshot`."""

    def __init__(self, folder: str) -> None:
        self._folder = pathlib.Path(folder)
        self._lock = threading.Lock()
        self._saved = 0
        self._log = -1
        self._size = 0
        self.slow = False
        self.loop: Any = None

    def load(self) -> tuple[int, str, Fields, int, int, Entries]:
        vote = self._read("vote", {"term": 0, "vote": ""})
        snapshot = self._read("snapshot", {"index": 0, "term": 0, "state": ""})
        self._saved = snapshot["index"]
        if not (self._folder / "log").exists():
            self.rewrite(0, 0, [])
        whole = []
        for line in (self._folder / "log").read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):  # the server was killed while it wrote this line
                break
            whole.append(json.loads(line))
            self._size += len(line)
        self._log = os.open(self._folder / "log", os.O_WRONLY | os.O_APPEND)
        base, base_term = whole[0]
        return vote["term"], vote["vote"], snapshot, base, base_term, whole[1:]

    def _read(self, name: str, default: Fields) -> Fields:
        try:
            said: Fields = json.loads((self._folder / name).read_text())
        except FileNotFoundError:
            return default
        return said

    def save_vote(self, term: int, vote: str) -> None:
        self._replace("vote", [json.dumps({"term": term, "vote": vote})])

    def append(self, entries: Entries) -> None:
        data = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
        began_s = time.monotonic()
        os.ftruncate(self._log, self._size)  # removes what a failed append has left
        if os.write(self._log, data) < len(data):
            raise OSError("the disk is full")
        os.fsync(self._log)
        self._size += len(data)
        self.slow = time.monotonic() - began_s > SLOW_S

    def rewrite(self, base: int, base_term: int, entries: Entries) -> None:
        lines = [json.dumps(each) + "\n" for each in ([base, base_term], *entries)]
        self._replace("log", ["".join(lines)])
        if self._log >= 0:
            os.close(self._log)
        self._log = os.open(self._folder / "log", os.O_WRONLY | os.O_APPEND)
        self._size = sum(map(len, lines))

    def save_snapshot(self, snapshot: Fields) -> None:
        with self._lock:
            self._replace("snapshot", [json.dumps(snapshot)])
            self._saved = snapshot["index"]

    def begin_snapshot(self, snapshot: Fields, done: Callable[[], None]) -> None:
        def save() -> None:
            text = json.dumps(snapshot)
            size = len(text) // 8 + 1  # in parts, so that the log's own writes can come between
            try:
                with self._lock:
                    if snapshot["index"] > self._saved:
                        self._replace("snapshot", [text[n : n + size] for n in range(0, len(text), size)])
                        self._saved = snapshot["index"]
            except OSError as error:
                _say(f"no snapshot: {error}")
            else:
                self.loop.call_soon_threadsafe(done)

        threading.Thread(target=save, daemon=True).start()

    def _replace(self, name: str, parts: list[str]) -> None:
        new = self._folder / f"{name}.new"
        opened = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for part in parts:
                if os.write(opened, part.encode()) < len(part):
                    raise OSError("the disk is full")
                os.fsync(opened)
        finally:
            os.close(opened)
        new.rename(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _say(text: str) -> None:
    sys.stderr.write(f"{time.monotonic():.3f} {text}\n")
    sys.stderr.flush()


class RefusedError(Exception):
    """The request's answer: a status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Server(asyncio.DatagramProtocol):
    """A node with a clock, a network and users."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._peers: dict[str, str] = config.pop("peers")
        self._name, self._port = config.pop("name"), config.pop("port")
        self._files = Files(config.pop("data"))
        self._config = config
        self._transport: Any = None

    async def run(self) -> None:
        loop = self._files.loop = asyncio.get_running_loop()
        here = self._peers[self._name], self._port
        self._node = Node(
            self._name, list(self._peers), self._files, now=time.monotonic, dice=random.Random(), **self._config
        )
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=here)
        await asyncio.start_server(self._connection, *here, backlog=512)
        _say(f"{self._name} starts in term {self._node.term}, with {self._node.last} entries")
        said: Any = None
        while True:
            self._do(self._node.tick)
            now = (self._node.role, self._node.term, self._node.snapshots, self._node.installs)
            if now != said:
                said = now
                _say("{} in term {}, {} snapshots, {} installs".format(*now))
            await asyncio.sleep(TICK_S)

    def datagram_received(self, data: bytes, addr: Any) -> None:  # noqa: ARG002 - the message names its sender
        self._do(self._node.receive, json.loads(data))

    def error_received(self, exc: Exception) -> None:
        """A host whose server is down refuses datagrams: they count as lost, like others."""

    def _do(self, act: Callable[..., Any], *args: Any) -> Any:
        """Runs `act`, and sends the node's messages. If the disk fails, logs that and returns None."""
        try:
            return act(*args)
        except OSError as error:
            _say(f"the disk: {error}")
            return None
        finally:
            out, self._node.out = self._node.out, []
            for to, message in out:
                with contextlib.suppress(OSError):
                    self._transport.sendto(json.dumps(message).encode(), (self._peers[to], self._port))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(_header(head, "content-length") or 0)
                body = await reader.readexactly(length)
                try:
                    status, answer = 200, await self._answer(head, body)
                except RefusedError as refused:
                    status, answer = refused.status, str(refused).encode()
                except OSError as error:
                    status, answer = 500, str(error).encode()
                writer.write(b"HTTP/1.1 %d .\r\nContent-Length: %d\r\n\r\n" % (status, len(answer)) + answer)
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, body: bytes) -> bytes:  # noqa: PLR0911 - one for each path
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        path, _, query = target.partition("?")
        path, asked = urllib.parse.unquote(path), dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        node = self._node
        if path == LEADER:
            return json.dumps(f"{self._peers[node.leader]}:{self._port}" if node.leader else "").encode()
        if path == "/v1/agent/self":
            figures = {"snapshots": node.snapshots, "installs": node.installs}
            return json.dumps({"role": node.role, "term": node.term, "commit_index": node.commit, **figures}).encode()
        if method == "GET" and "stale" in asked:
            return _entries(node.state, path, asked)
        if node.role != "leader":
            return await self._forwarded(head, body, method, path, asked)
        if path.startswith("/v1/session/"):
            return await self._session(path.split("/")[3:], body)
        if method == "GET":
            return _entries(await self._wait(node.read), path, asked)
        if method == "DELETE":
            return await self._proposed(["delete", path[len("/v1/kv/") :]])
        cas = int(asked["cas"]) if "cas" in asked else None
        value = base64.b64encode(body).decode()
        change = ["set", path[len("/v1/kv/") :], value, cas, asked.get("acquire", ""), asked.get("release", "")]
        return await self._proposed(change)

    async def _proposed(self, command: Entry) -> bytes:
        result = await self._wait(lambda done: self._node.propose(command, done))
        if isinstance(result, str):
            raise RefusedError(500, result)
        return json.dumps(result).encode()

    async def _session(self, told: list[str], body: bytes) -> bytes:
        if told[0] == "create":
            asked = json.loads(body)
            session = str(random.SystemRandom().getrandbits(64))
            await self._proposed(["session", session, _seconds(asked["TTL"]), time.monotonic()])
            return json.dumps({"ID": session}).encode()
        if told[0] == "destroy":
            return await self._proposed(["end", told[1]])
        if not await self._wait(lambda done: self._node.renew(told[1], done)):
            raise RefusedError(404, "Session id not found")
        return b"[]"

    async def _wait(self, ask: Callable[[Done], bool]) -> Any:
        """Raises RefusedError if no answer comes: the change may or may not happen later. Raises OSError."""
        future = asyncio.get_running_loop().create_future()

        def act() -> None:
            try:
                if not ask(lambda result: None if future.done() else future.set_result(result)):
                    future.set_exception(RefusedError(500, "this server does not lead any more"))
            except OSError as error:
                future.set_exception(error)

        self._do(act)
        try:
            result = await asyncio.wait_for(future, _ANSWER_S)
        except TimeoutError:
            raise RefusedError(500, "no majority answered in time") from None
        if result is None:
            raise RefusedError(500, "leadership was lost")
        return result

    async def _forwarded(self, head: bytes, body: bytes, method: str, path: str, asked: Fields) -> bytes:
        leader = self._node.leader
        if not leader or leader == self._name or _header(head, "x-forwarded"):
            raise RefusedError(500, "No cluster leader")
        try:
            return await asyncio.wait_for(self._passed_on(leader, head, body), _FORWARD_S)
        except (OSError, EOFError, TimeoutError) as error:
            alone = self._node.read_alone()
            if method == "GET" and alone is not None:
                return _entries(alone, path, asked)
            raise RefusedError(500, f"the leader, {leader}, does not answer: {error!r}") from None

    async def _passed_on(self, leader: str, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._peers[leader], self._port)
        try:
            writer.write(head[:-2] + b"X-Forwarded: 1\r\n\r\n" + body)
            said = await reader.readuntil(b"\r\n\r\n")
            answer = await reader.readexactly(int(_header(said, "content-length") or 0))
        finally:
            writer.close()
        status = int(said.split(b" ", 2)[1])
        if status != 200:
            raise RefusedError(status, answer.decode())
        return answer


def _header(head: bytes, name: str) -> str:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return next((value.strip().decode() for key, _, value in lines if key.lower() == name.encode()), "")


def _entries(state: State, path: str, asked: Fields) -> bytes:
    """The answer to a read. Raises RefusedError if there is no such key."""
    key = path[len("/v1/kv/") :]
    found = sorted(each for each in state.kv if each == key or ("recurse" in asked and each.startswith(key)))
    if not found:
        raise RefusedError(404, "")
    if "raw" in asked:
        return base64.b64decode(state.kv[key][0])
    fields = ("Value", "ModifyIndex", "LockIndex", "Session")
    said = ({"Key": each, **dict(zip(fields, state.kv[each], strict=True))} for each in found)
    return json.dumps([{k: v for k, v in one.items() if k != "Session" or v} for one in said]).encode()


def _seconds(text: str) -> float:
    """`1500ms` or `10s`."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


if __name__ == "__main__":
    asyncio.run(Server(json.loads(pathlib.Path(sys.argv[1]).read_text())).run())
