"""The page over HTTP: its three files, the stream of what happens, and what the lead's page may ask for."""

from __future__ import annotations

import asyncio
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hashidrill.core.protocols.events import Audience
from hashidrill.gamedays.warroom.guard import HEADERS, LONGEST_BODY, Guard

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from hashidrill.gamedays.warroom.crowd import Crowd
    from hashidrill.gamedays.warroom.document import Batch
    from hashidrill.gamedays.warroom.room import Room

BEAT_S = 5.0
"""A stream is never silent for longer: a page that hears nothing knows that it is cut off."""
SLOWEST_S = 20.0
"""A browser that takes nothing for this long is let go; it comes back by itself, and lacks nothing then."""
MOST_STREAMS = 32
"""Of the lead's pages, and as many of those that watch: neither takes the other's."""
_ASSETS = {
    "": ("warroom.html", "text/html"),
    "warroom.css": ("warroom.css", "text/css"),
    "warroom.js": ("warroom.js", "text/javascript"),
    "charts.js": ("charts.js", "text/javascript"),
}


class Pages:
    """The application. `changed` wakes the streams; call it in the loop's thread."""

    def __init__(self, room: Room, guard: Guard, crowd: Crowd | None = None) -> None:
        self._room, self._guard, self._crowd = room, guard, crowd
        self._change = asyncio.Event()
        self.streams = dict.fromkeys(Audience, 0)
        routes = [
            Route("/{token}/events", self._events, methods=["GET"]),
            Route("/{token}/{name:path}", self._asset, methods=["GET"]),
            *(Route(f"/{{token}}/{name}", self._does(name), methods=["POST"]) for name in ("stop", "answer", "note")),
        ]
        self._app = Starlette(routes=routes)
        self._app.router.redirect_slashes = False

    def changed(self) -> None:
        """Something happened."""
        waiting, self._change = self._change, asyncio.Event()
        waiting.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: asks the guard first; every answer has its headers."""
        if scope["type"] != "http":
            return

        async def sealed(message: Any) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *ours]}
            await send(message)

        if self._crowd is not None:
            self._crowd.introduces(
                scope.get("client"), self._guard.who(scope["path"].partition("/")[2].partition("/")[0])
            )
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._guard.refuses(scope["method"], headers)
        if refused:
            await PlainTextResponse(f"{refused}\n", 403)(scope, receive, sealed)
        else:
            await self._app(scope, receive, sealed)

    def _who(self, request: Request) -> Audience | None:
        return self._guard.who(str(request.path_params["token"]))

    async def _asset(self, request: Request) -> Response:
        asset = _ASSETS.get(str(request.path_params["name"]))
        if self._who(request) is None or asset is None:
            return _unknown()
        text = files("hashidrill.gamedays.warroom").joinpath("assets", asset[0]).read_bytes()
        return Response(text, media_type=asset[1])

    async def _events(self, request: Request) -> Response:
        who = self._who(request)
        if who is None:
            return _unknown()
        if self.streams[who] >= MOST_STREAMS:
            return PlainTextResponse("too many pages are open\n", 503)
        return _Stream(self, who, _number(request))

    def _does(self, name: str) -> Any:
        async def do(request: Request) -> Response:
            who = self._who(request)
            if who is None:
                return _unknown()
            if who is not Audience.OPERATOR:
                return JSONResponse({"said": "only the lead's page may do this"}, 403)
            said = await _body(request)
            if said is None:
                return JSONResponse({"said": "this is not what the page sends"}, 400)
            return getattr(self, f"_{name}")(said)  # type: ignore[no-any-return] # one of the three below

        return do

    def _stop(self, _said: dict[str, Any]) -> Response:
        if self._room.stop():
            return JSONResponse({"said": "stopping: faults are reverted first"})
        return JSONResponse({"said": "there is nothing to stop, or it stops already"}, 409)

    def _answer(self, said: dict[str, Any]) -> Response:
        number, text = said.get("question"), said.get("answer")
        if not isinstance(number, int) or not isinstance(text, str):
            return JSONResponse({"said": "this is not what the page sends"}, 400)
        if self._room.answer(number, text):
            return JSONResponse({"said": "answered"})
        return JSONResponse({"said": "somebody else has answered this"}, 409)

    def _note(self, said: dict[str, Any]) -> Response:
        who, text = said.get("who", ""), said.get("text")
        if not isinstance(who, str) or not isinstance(text, str) or not text.strip():
            return JSONResponse({"said": "write something first"}, 400)
        self._room.write(who.strip() or "scribe", text, watchers=said.get("watchers") is True)
        return JSONResponse({"said": "noted"})

    # the stream

    async def batches(self, who: Audience, number: int | None) -> Any:
        """What a page lacks, as it comes; None for a beat. Ends after the room is over and all of it was taken."""
        while True:
            change, over = self._change, self._room.is_over  # looked at first: what comes after that wakes us again
            batch = self._room.since(who, number)
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
    """One browser. It is asked for no acknowledgement: what it did not get, it asks for when it comes back."""

    def __init__(self, pages: Pages, who: Audience, number: int | None) -> None:
        super().__init__()
        self._pages, self._who, self._number = pages, who, number

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        self._pages.streams[self._who] += 1
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pages.streams[self._who] -= 1
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
    """The last message that this browser has."""
    text = request.headers.get("last-event-id") or request.query_params.get("after") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


async def _body(request: Request) -> dict[str, Any] | None:
    text = b""
    async for part in request.stream():
        text += part
        if len(text) > LONGEST_BODY:
            return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _unknown() -> Response:
    return PlainTextResponse("there is nothing here; the address of the page ends with a token\n", 404)
