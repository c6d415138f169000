"""A real Chromium without a screen, driven over its DevTools protocol: evaluate, press keys, cut the network, look."""

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import aiohttp

WITHIN_S = 60.0


@contextlib.asynccontextmanager
async def chromium(path):
    """A browser, which ends with the block. `page` opens a tab."""
    profile = Path(tempfile.mkdtemp(prefix="chromium-"))
    command = [
        path,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-proxy-server",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={profile}",
        "--remote-debugging-port=0",
        "about:blank",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        said = await _until(lambda: _lines(profile / "DevToolsActivePort"))
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"ws://127.0.0.1:{said[0]}{said[1]}", max_msg_size=0) as socket,
        ):
            browser = Browser(socket)
            reading = asyncio.create_task(browser.read())
            try:
                yield browser
            finally:
                with contextlib.suppress(AssertionError, TimeoutError, ConnectionError):
                    await browser.call("Browser.close")  # its own processes end with it; killed, they outlive it
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        await asyncio.to_thread(_ended, process)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _ended(process):
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)


def _lines(path):
    lines = path.read_text().split() if path.exists() else []
    return lines if len(lines) == 2 else None


async def _until(look, within_s=WITHIN_S):
    async with asyncio.timeout(within_s):
        while not (found := look()):
            await asyncio.sleep(0.05)
    return found


class Browser:
    def __init__(self, socket):
        self._socket, self._number, self._answers, self._pages = socket, 0, {}, {}

    async def read(self):
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            elif (page := self._pages.get(said.get("sessionId"))) is not None:
                page.heard(said["method"], said["params"])

    async def call(self, method, session=None, **params):
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        said = {"id": self._number, "method": method, "params": params}
        await self._socket.send_json(said | ({"sessionId": session} if session else {}))
        found = await asyncio.wait_for(answer, WITHIN_S)
        if "error" in found:
            raise AssertionError(f"{method}: {found['error']}")
        return found["result"]

    async def page(self, url, *, width=1300, height=900, dark=False, still=False):
        """A window of that size with the page in it: what is behind another is not drawn. A narrow one is a phone."""
        target = await self.call("Target.createTarget", url="about:blank", newWindow=True)
        session = (await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True))["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        await page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        await page.call("Emulation.setEmulatedMedia", features=features)
        await page.call("Page.navigate", url=url)
        return page


class Page:
    """`asked` has every address that it asked for, `console` what was logged or went wrong."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self.asked, self.console = [], []

    def heard(self, method, params):
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.console.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.console.append(params["entry"]["text"])

    async def call(self, method, **params):
        return await self._browser.call(method, self._session, **params)

    async def run(self, script):
        """The value of an expression; of a promise, once it is there."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def until(self, script, within_s=WITHIN_S):
        """Waits until an expression is true; says what the page shows where it never is."""
        try:
            async with asyncio.timeout(within_s):
                while not (found := await self.run(script)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.run("document.body.innerText")
            raise AssertionError(f"never true: {script}\nconsole: {self.console}\n{text}") from None
        return found

    async def text(self, selector="body"):
        return await self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    async def press(self, *keys):
        """Keys as a keyboard sends them."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowRight": 39}
        for key in keys:
            more = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
            about = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes[key]}
            await self.call("Input.dispatchKeyEvent", type="keyDown", **about, **more)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def type(self, text):
        await self.call("Input.insertText", text=text)

    async def picture(self, path, *, whole=False):
        """A screenshot, of the window or of the whole page."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(Path(path).write_bytes, base64.b64decode(found["data"]))
