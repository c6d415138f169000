"""Decides which requests each visitor of the page may make. It listens on the loopback, where every program and every
web page of this machine can reach it: a browser sends requests there on behalf of any open site.

- Without a token of this server, every address is unknown.
- A request must name this server in `Host`. A site whose name was made to resolve to the loopback (DNS rebinding) sends
  its own name there.
- Requests from other sites are refused (`Origin`, `Sec-Fetch-Site`), and requests that change anything must be JSON,
  which only our page sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import Audience
from hashidrill.core.util.extras import extra
from hashidrill.gamedays.warroom.ballot import RefusedError
from hashidrill.gamedays.warroom.room import Room

with extra("page", "the page of --serve"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from hashidrill.gamedays.warroom.document import Batch


HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
"""Sent with every answer. The page can load and run only its own files; no text from a cluster becomes markup."""
LOOPBACK = "127.0.0.1"
LONGEST_BODY, MOST_READ, LONGEST_ANSWER = 16_384, 4_000_000, 400
NOT_OURS = "the page does not send such a request"
NOTED = "Noted. Others read it when all answers are shown."
LATE = "Noted as late: the answers are shown already, so yours does not count."


@dataclass(frozen=True)
class Visitor:
    """The visitor behind a page: the lead, a watcher, or one `person` (by key), who watches and answers."""

    audience: Audience
    person: str = ""


LEAD, WATCHER = Visitor(Audience.OPERATOR), Visitor(Audience.TRAINEE)


def _new_token() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Guard:
    """Guards a server on that port. The tokens are in the addresses of the page, and nowhere else.

    `elsewhere`: another address of this machine, where every page but the lead's can be opened; "" for none.
    """

    port: int
    address: str = LOOPBACK
    """Where the server listens."""
    elsewhere: str = ""
    tokens: dict[Visitor, str] = field(
        default_factory=lambda: {visitor: _new_token() for visitor in (LEAD, WATCHER)}, repr=False
    )

    def url(self, visitor: Visitor) -> str:
        """The address of that page; a person gets a token at the first call."""
        host = self.elsewhere if self.elsewhere and visitor != LEAD else self.address
        return f"http://{host}:{self.port}/{self.tokens.setdefault(visitor, _new_token())}/"

    def who(self, token: str, at: str = "") -> Visitor | None:
        """The visitor with this token, on a connection to the address `at`. Compares every token, in constant time."""
        given = token.encode(errors="replace")
        same = [each for each, known in [*self.tokens.items()] if hmac.compare_digest(known.encode(), given)]
        return next((each for each in same if each != LEAD or at in {"", self.address}), None)

    def refuses(self, method: str, headers: Mapping[str, str]) -> str:
        """Why a request is refused, whatever its path; "" if it is not."""
        host, origin = headers.get("host", ""), headers.get("origin")
        reads = method in {"GET", "HEAD"}
        kind = headers.get("content-type", "").partition(";")[0].strip()
        site = headers.get("sec-fetch-site", "none")
        rules = (
            (
                host not in self._hosts,
                (f"this server only answers requests whose Host header is {self._names}, with this server's port"),
            ),
            (origin not in {None, f"http://{host}"}, "a page of another site sent this request"),
            (site not in {"same-origin", "none"}, "a page of another site sent this request"),
            (not reads and method != "POST", "this method is not supported"),
            (not reads and origin is None, "only the page itself may send this, with its Origin header"),
            (not reads and kind != "application/json", "the body must be JSON"),
        )
        return next((why for broken, why in rules if broken), "")

    @property
    def _names(self) -> str:
        own = [self.address, "localhost"] if self.address == LOOPBACK else [self.address]
        return " and ".join([*own, *([self.elsewhere] if self.elsewhere else [])])

    @property
    def _hosts(self) -> frozenset[str]:
        return frozenset(f"{name}:{self.port}" for name in self._names.split(" and "))


MOST = 128
"""The most connections without the lead's token."""
INTRODUCES_WITHIN_S = 5.0


class Crowd:
    """The connections of one server, the oldest first. All methods are called in the event loop's thread."""

    def __init__(self) -> None:
        self._strangers: dict[Any, asyncio.Transport] = {}
        """Keyed by the other end's address, as a request names it."""
        self._watching: dict[Any, asyncio.Transport] = {}

    def enters(self, who: Any, transport: asyncio.Transport) -> None:
        self._strangers[who] = transport
        if len(self._strangers) + len(self._watching) > MOST:
            leaves = self._strangers if len(self._strangers) > 1 else self._watching
            leaves.pop(next(iter(leaves))).abort()

    def introduces(self, who: Any, visitor: Visitor | None) -> None:
        """Notes the visitor whose token a request on that connection carries; None if it is not this server's token."""
        if visitor is None:
            return
        transport = self._strangers.pop(who, None) or self._watching.pop(who, None)
        if transport is not None and visitor != LEAD:
            self._watching[who] = transport

    def waited(self, who: Any, transport: asyncio.Transport) -> None:
        """The time for the connection's first request is over."""
        if self._strangers.get(who) is transport:
            transport.abort()

    def leaves(self, who: Any, transport: asyncio.Transport) -> None:
        for some in (self._strangers, self._watching):
            if some.get(who) is transport:
                del some[who]

    def protocol(self) -> type[H11Protocol]:
        """A protocol class for uvicorn that reports each connection."""
        crowd = self

        class Visited(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
                super().connection_made(transport)
                crowd.enters(self.client, transport)
                self.loop.call_later(INTRODUCES_WITHIN_S, crowd.waited, self.client, transport)

            def connection_lost(self, exc: Exception | None) -> None:
                crowd.leaves(self.client, self.transport)
                super().connection_lost(exc)

        return Visited


BEAT_S = 5.0
"""A stream is never silent for longer: a page that hears nothing knows that it is cut off."""
SLOWEST_S = 20.0
"""A browser that reads nothing for this long is disconnected; it reconnects and then gets all it missed."""
MOST_STREAMS, MOST_TABS = 32, 4
"""The most streams of the lead's pages, and of watchers' pages, each group with its own limit;
and the most tabs of one person."""
LEFT_AFTER_S = 10.0
"""A person without a page for this long has left; a page that lost its network returns sooner."""
_ASSETS = {
    "": ("gamedays.warroom", "warroom.html", "text/html"),
    "page.css": ("reports", "page.css", "text/css"),
    "warroom.css": ("gamedays.warroom", "warroom.css", "text/css"),
    "warroom.js": ("gamedays.warroom", "warroom.js", "text/javascript"),
    "charts.js": ("reports", "charts.js", "text/javascript"),
    "class.js": ("gamedays.warroom", "class.js", "text/javascript"),
}
"""Name in the address to room, file and media type."""


class Pages:
    """The application. `changed` wakes the streams; call it in the loop's thread."""

    def __init__(self, room: Room, guard: Guard, crowd: Crowd | None = None) -> None:
        self._room, self._guard, self._crowd = room, guard, crowd
        self._change = asyncio.Event()
        self.streams = Counter[Visitor]()
        routes = [
            Route("/{token}/events", self._events, methods=["GET"]),
            Route("/{token}/mine", self._mine, methods=["GET"]),
            Route("/{token}/predict", self._predict, methods=["POST"]),
            Route("/{token}/{name:path}", self._asset, methods=["GET"]),
            *(Route(f"/{{token}}/{name}", self._does(name), methods=["POST"]) for name in ("stop", "answer", "note")),
        ]
        self._app = Starlette(routes=routes)
        self._app.router.redirect_slashes = False

    def changed(self) -> None:
        """Wakes the streams after a change."""
        waiting, self._change = self._change, asyncio.Event()
        waiting.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: the guard checks each request first; every answer has `HEADERS`."""
        if scope["type"] != "http":
            return

        async def sealed(message: Any) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *ours]}
            await send(message)

        if self._crowd is not None:
            token = scope["path"].partition("/")[2].partition("/")[0]
            self._crowd.introduces(scope.get("client"), self._guard.who(token, scope["server"][0]))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._guard.refuses(scope["method"], headers)
        if refused:
            await PlainTextResponse(f"{refused}\n", 403)(scope, receive, sealed)
        else:
            await self._app(scope, receive, sealed)

    def _who(self, request: Request) -> Visitor | None:
        return self._guard.who(str(request.path_params["token"]), request.scope["server"][0])

    async def _asset(self, request: Request) -> Response:
        asset = _ASSETS.get(str(request.path_params["name"]))
        if self._who(request) is None or asset is None:
            return _unknown()
        room, name, media_type = asset
        name = name if request.path_params["name"] else self._room.page
        text = files(f"hashidrill.{room}").joinpath("assets", name).read_bytes()
        return Response(text, media_type=media_type)

    async def _events(self, request: Request) -> Response:
        who = self._who(request)
        if who is None:
            return _unknown()
        if self.streams[who] >= (MOST_TABS if who.person else MOST_STREAMS):
            return PlainTextResponse("too many pages are open\n", 503)
        return _Stream(self, who, _number(request))

    def _does(self, name: str) -> Any:
        async def do(request: Request) -> Response:
            who = self._who(request)
            if who is None:
                return _unknown()
            if who != LEAD:
                return JSONResponse({"said": "only the lead's page may do this"}, 403)
            said = await _body(request)
            if isinstance(said, Response):
                return said
            return getattr(self, f"_{name}")(said)  # type: ignore[no-any-return] # one of the three below

        return do

    async def _mine(self, request: Request) -> Response:
        """The part that only this person may read: their name and their answers."""
        who, ballot = self._who(request), self._room.ballot
        if who is None:
            return _unknown()
        mine = None if ballot is None else ballot.mine(who.person)
        return JSONResponse({"name": self._room.people.get(who.person, ""), "answers": mine})

    async def _predict(self, request: Request) -> Response:
        """A person's own answers; the token says whose they are."""
        who = self._who(request)
        if who is None:
            return _unknown()
        said = await _body(request)
        if isinstance(said, Response):
            return said
        status, text = await asyncio.to_thread(self._given, who.person, said)
        return JSONResponse({"said": text}, status)

    def _given(self, person: str, said: dict[str, Any]) -> tuple[int, str]:
        run, answers, ballot = said.get("run"), said.get("answers"), self._room.ballot
        if not person:
            return 403, "only a person's own page may answer"
        if not isinstance(run, int) or not isinstance(answers, dict) or not _all_texts(answers):
            return 400, NOT_OURS
        if ballot is None:
            return 409, "no question is open now"
        try:
            return 200, LATE if ballot.give(person, run, answers) else NOTED
        except RefusedError as error:
            return error.status, str(error)

    def opened(self, who: Visitor) -> None:
        self.streams[who] += 1

    def closed(self, who: Visitor) -> None:
        """A person whose last page stays closed has left."""
        self.streams[who] -= 1
        if who.person and not self._room.is_over:
            asyncio.get_running_loop().call_later(LEFT_AFTER_S, self._left, who)

    def _left(self, who: Visitor) -> None:
        if not self.streams[who]:
            self._room.left(who.person)

    def _stop(self, _said: dict[str, Any]) -> Response:
        if self._room.stop():
            return JSONResponse({"said": "stopping: faults are reverted first"})
        return JSONResponse({"said": "there is nothing to stop, or it is already stopping"}, 409)

    def _answer(self, said: dict[str, Any]) -> Response:
        number, text = said.get("question"), said.get("answer")
        if not isinstance(number, int) or not isinstance(text, str):
            return JSONResponse({"said": NOT_OURS}, 400)
        if self._room.answer(number, text):
            return JSONResponse({"said": "answered"})
        return JSONResponse({"said": "another person has already answered this"}, 409)

    def _note(self, said: dict[str, Any]) -> Response:
        who, text = said.get("who", ""), said.get("text")
        if not isinstance(who, str) or not isinstance(text, str) or not text.strip():
            return JSONResponse({"said": "write something first"}, 400)
        self._room.write(who.strip() or "scribe", text, watchers=said.get("watchers") is True)
        return JSONResponse({"said": "noted"})

    # the stream

    async def batches(self, who: Visitor, number: int | None) -> Any:
        """Yields a page's updates as they come, None as a heartbeat; ends after the room's end and the last update."""
        while True:
            change, over = (
                self._change,
                self._room.is_over,
            )  # read before the batch: a change that comes later wakes this loop again
            batch = self._room.since(who.audience, number)
            if batch is not None:
                number = batch.number
                yield batch
                continue
            if over:
                return
            try:
                await asyncio.wait_for(change.wait(), BEAT_S)
            except TimeoutError:
                yield None


class _Stream(Response):
    """One browser. The page does not acknowledge messages: after a lost connection it requests the missing ones."""

    def __init__(self, pages: Pages, who: Visitor, number: int | None) -> None:
        super().__init__()
        self._pages, self._who, self._number = pages, who, number

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        self._pages.opened(self._who)
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pages.closed(self._who)
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
        await asyncio.wait_for(send(start), SLOWEST_S)
        await asyncio.wait_for(send(_body_of(b"retry: 1000\n\n")), SLOWEST_S)
        async for batch in self._pages.batches(self._who, self._number):
            await asyncio.wait_for(send(_body_of(_message(batch))), SLOWEST_S)
        await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), SLOWEST_S)


def _message(batch: Batch | None) -> bytes:
    if batch is None:
        return b"event: beat\ndata: {}\n\n"
    kind = "whole" if batch.whole else "changes"
    return f'id: {batch.number}\nevent: {kind}\ndata: {{"missed":{batch.missed},"data":{batch.data}}}\n\n'.encode()


def _body_of(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _number(request: Request) -> int | None:
    text = request.headers.get("last-event-id") or request.query_params.get("after") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


async def _body(request: Request) -> dict[str, Any] | Response:
    """The request's content, or the reason to refuse it."""
    text, length = b"", 0
    async for part in request.stream():  # to its end: a browser that is cut off reads no answer
        length += len(part)
        if length > MOST_READ:
            break
        text = text + part if length <= LONGEST_BODY else b""
    if length > LONGEST_BODY:
        return JSONResponse({"said": f"this is too long: the limit is {LONGEST_BODY // 1024} KiB"}, 413)
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    return said if isinstance(said, dict) else JSONResponse({"said": NOT_OURS}, 400)


def _all_texts(answers: dict[str, Any]) -> bool:
    return all(isinstance(each, str) and len(each) <= LONGEST_ANSWER for each in answers.values())


def _unknown() -> Response:
    return PlainTextResponse("there is nothing here; the address of the page ends with a token\n", 404)


LAST_WORDS_S = 2.0
"""The longest time that browsers have to receive the last state."""


@contextlib.contextmanager
def serve(port: int = 0, *, address: str = LOOPBACK, room: Room | None = None, elsewhere: str = "") -> Iterator[Room]:
    """Serves a room's page until the block ends. Port 0: any free port. `address`: an address of this machine.

    The addresses are `room.lead_url` and `room.watch_url`. `elsewhere`: see `Guard`. Raises UsageError before anything
    starts.
    """
    room = room or Room()
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(_listen(port, address))]
        guard = Guard(listening[0].getsockname()[1], address, elsewhere)
        if elsewhere:
            listening.append(stack.enter_context(_listen(guard.port, elsewhere, "--people-at")))
        room.lead_url, room.watch_url = guard.url(LEAD), guard.url(WATCHER)
        room.invite = lambda person: guard.url(Visitor(Audience.TRAINEE, person))
        server = Server(room, guard, *listening)
        server.start()
        try:
            yield room
        finally:
            room.over()
            server.end()


class Server:
    """Serves a room on listening sockets."""

    def __init__(self, room: Room, guard: Guard, *listening: socket.socket) -> None:
        self._room, self._guard, self._listening = room, guard, listening
        self._thread = threading.Thread(target=self._serve, name="warroom", daemon=True)
        self._ready = threading.Event()
        self._uvicorn: uvicorn.Server | None = None

    def start(self) -> None:
        """Returns once the server accepts requests."""
        self._thread.start()
        self._ready.wait(10.0)

    def end(self) -> None:
        """Ends the server, once browsers have received all updates or are too slow."""
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
        self._thread.join(LAST_WORDS_S + 3.0)

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        crowd = Crowd()
        pages = Pages(self._room, self._guard, crowd)

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: no page is connected
                loop.call_soon_threadsafe(pages.changed)

        self._room.on_change = changed
        config = uvicorn.Config(
            pages,
            http=crowd.protocol(),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            backlog=64,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(LAST_WORDS_S),
        )
        self._uvicorn = uvicorn.Server(config)
        self._ready.set()
        await self._uvicorn.serve(sockets=[*self._listening])


def _listen(port: int, address: str, option: str = "--listen") -> socket.socket:
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: a port is a number from 1 to 65535, or 0 for any that is free")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        where = f"--port {port}" if address == LOOPBACK else f"{option} {address}, --port {port}"
        raise UsageError(
            f"{where}: the page cannot be served there: {error.strerror or error}; choose another port, or leave"
            " --port out for any that is free"
        ) from None
    return listening
