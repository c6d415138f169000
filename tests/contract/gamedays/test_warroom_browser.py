"""The page of a war room in a real browser, or in two: what it shows, what it asks for, keys, phones, lost networks."""

import asyncio
import contextlib
import gc
import json
import socket

import psutil
import pytest

import simulated_run
from browser import WITHIN_S, chromium
from hashidrill.core.protocols.events import Note
from hashidrill.gamedays.training.classroom import ClassRoom
from hashidrill.gamedays.warroom.ballot import Ballot, BallotQuestion
from hashidrill.gamedays.warroom.room import Room
from hashidrill.gamedays.warroom.serving import LEAD, Guard, Server, serve

pytestmark = [pytest.mark.long, pytest.mark.needs("chromium")]

DRAWN = "document.querySelectorAll('#panels svg').length >= 6"
LIMIT_BYTES = 200e6
OWNED = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture
def browser(tool):
    """`async with browser() as one:` a browser of its own."""
    return lambda: chromium(tool("chromium"))


@pytest.fixture
def pressed():
    """What the stop button did, in place of ending these tests."""
    return []


@pytest.fixture
def room(pressed):
    with serve(room=Room(interrupt=lambda: pressed.append("stop"))) as room:
        yield room


def plays(room, until_s=60, **how):
    room.begins("raft/slow-leader-disk: The disk of the leader slows down")
    for event in simulated_run.events(until_s=until_s, **how):
        room.tell(event)


def ends(room, **how):
    for event in simulated_run.events(**how):
        if event.t_ns > 60e9:
            room.tell(event)
    room.tell(simulated_run.end())
    room.tell(simulated_run.judged(**how))


def seat(name, state="paged", since=65, spans=(("looking around", 0, 20), ("paged", 20, 85)), **score):
    row = {"name": name, "scenario": "first", "state": state, "since_page_s": since, "result": "", "points": None}
    return {**row, "spans": spans, **score}


def test_the_page_of_a_class_shows_every_seat_on_a_desk_and_on_a_phone(browser):
    rows = [seat(OWNED), seat("ben", "over", 200, (("over", 80, 85),), result="passed", points=93)]
    rows += [seat(f"seat-{number}", "not begun", None, ()) for number in range(3, 9)]
    room = ClassRoom({"title": "first", "about": [["trainees type", "ssh drill@trainbox"]]})

    async def main():
        async with browser() as one:
            for width in (1280, 390):
                page = await one.page(room.lead_url, width=width)
                await page.until("document.querySelectorAll('tbody tr').length === 8")
                await page.until("document.querySelectorAll('#lanes rect.sick').length === 1")
                text = await page.text("#seats")
                assert OWNED in text
                assert "passed, 93" in text
                assert "1:05" in text
                assert await page.run("document.documentElement.scrollWidth") <= width
                assert "owned" not in await page.run("document.title")
                assert page.console == []
            room.over()
            await page.until("document.querySelector('#connection').innerText === 'over'")

    with serve(room=room):
        room.show({"now": 85.0, "rows": rows})
        asyncio.run(main())


async def test_two_browsers_show_a_run_to_its_verdict_and_ask_nobody_else(room, browser):
    async with browser() as one, browser() as other:
        lead, watch = await one.page(room.lead_url), await other.page(room.watch_url)
        plays(room)
        for page in (lead, watch):
            await page.until(DRAWN)
            await page.until("document.querySelector('#phase').innerText.endsWith('1:00 into the run')")
            await page.until("document.querySelector('#phase').innerText.startsWith('method, 3 s left')")
            await page.until("document.querySelector('#tiles').innerText.includes('12%')")
        await lead.until("document.querySelector('#faults').innerText.includes('disk.latency on consul-1')")
        ends(room)
        for page in (lead, watch):
            await page.until("document.querySelector('#verdict').innerText.includes('FAIL')")
        await lead.until("document.querySelector('#verdict').innerText.includes('leadership_leaves')")
        told = await watch.run("document.documentElement.outerHTML")
        assert [word for word in simulated_run.SECRET if word in told] == []
        told = await lead.run("document.documentElement.outerHTML")
        assert [word for word in simulated_run.SECRET if word not in told] == [], "or nothing is proven"
        for page, url in ((lead, room.lead_url), (watch, room.watch_url)):
            assert [each for each in page.asked if not each.startswith((url, "data:,"))] == []
            assert page.console == []
        await lead.run("fetch('http://127.0.0.1:9/planted').catch(() => 0)")
        assert any("Content Security Policy" in each for each in lead.console), "what would leave is seen, and refused"


@pytest.mark.lie
async def test_markup_from_a_cluster_a_scribe_or_a_plan_is_text(room, browser):
    async with browser() as one:
        pages = [await one.page(url) for url in (room.lead_url, room.watch_url)]
        room.plans(OWNED, [OWNED], goals=[OWNED], people=[OWNED])
        room.predicted(1, "q", OWNED, OWNED, OWNED)
        plays(room, seed_text=OWNED)
        room.write(OWNED, OWNED, watchers=True)
        room.happened(1, {"q": OWNED})
        ends(room, seed_text=OWNED)
        with room.asking(OWNED, OWNED, [(OWNED, OWNED)], lambda _: None):
            for page in pages:
                await page.until(f"document.body.innerText.includes({json.dumps(OWNED)})")
                await page.until("document.querySelector('#question').innerText.includes('onerror')")
                assert await page.run("document.querySelectorAll('img, body script').length") == 0
                assert not (await page.run("document.title")).startswith("owned")
                assert [each for each in page.asked if each.endswith("/x")] == []
                assert page.console == []
        tried = "(() => { try { document.body.innerHTML = '<b>x'; return 'done' } catch (e) { return e.name } })()"
        assert await pages[0].run(tried) == "TypeError", "markup is refused even where a script of ours would try"


FORM = "document.querySelector('#ballot form')"
SENDS = (
    "(document.querySelector('[value=another]').click(), document.querySelector('#q1').value = '37s',"
    f" {FORM}.requestSubmit())"
)


@pytest.mark.lie
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
async def test_a_person_answers_once_and_nobody_reads_it_before_all_are_shown(room, browser, width, dark):
    """In two tabs, on a phone too; the pages of the lead and of another say who has answered, and not what."""
    kept = []
    questions = [
        BallotQuestion("leader", "Who leads?", "", ("same", "another")),
        BallotQuestion("stop", "How long?", ""),
    ]
    room.people = {"ada": OWNED, "grace": "Grace"}
    room.ballot = Ballot(
        1,
        questions,
        room.people,
        read=lambda _, text: text,
        words=lambda _, value: value or "",
        keep=lambda *given: kept.append(given),
        changed=lambda _: room.shows_ballot(),
    )
    async with browser() as one:
        room.plans("A day", ["Something gets slow"])
        room.shows_ballot()
        grace, again, ada, lead = [
            await one.page(url, width=width, dark=dark, still=True)
            for url in (*[room.invite("grace")] * 2, room.invite("ada"), room.lead_url)
        ]
        for page in (grace, again, ada):
            await page.until(FORM)
        assert await lead.run(FORM) is None
        assert await grace.run("document.documentElement.scrollWidth <= window.innerWidth")
        await grace.run(SENDS)
        for page in (grace, again):
            await page.until("document.querySelector('#mine')?.innerText.includes('37s')")
        for page in (ada, lead):
            await page.until("document.querySelector('#who-answered')?.innerText.includes('Answered: Grace.')")
            assert "37s" not in await page.run("document.documentElement.outerHTML")
        room.ballot.reveal()
        room.shows_ballot()
        room.predicted(1, "stop", "Grace", "How long?", "37s")
        await ada.until("document.querySelector('#ballot').innerText.includes('late')")
        for page in (ada, lead):
            await page.until("document.querySelector('#predictions').innerText.includes('37s')")
        assert [each[:1] for each in kept] == [("grace",)]
        assert ada.console == grace.console == lead.console == []


class Network:
    """Between a browser and the server: can be cut, and come back."""

    def __init__(self, port):
        self._port, self._open, self.up = port, set(), True

    async def listen(self):
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader, writer):
        if not self.up:
            writer.transport.abort()
            return
        there = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, there[1]}
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))

    async def _pass(self, reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    def cut(self):
        self.up = False
        for writer in self._open:
            writer.transport.abort()
        self._open = set()

    def close(self):
        self.cut()
        self._server.close()


LINES = "[...document.querySelectorAll('#lines .said')].map((line) => line.textContent).reverse().join()"


@pytest.mark.lie
async def test_a_page_that_lost_its_network_comes_back_and_has_every_line_once(browser):
    room = Room()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        network = Network(listening.getsockname()[1])
        guard = Guard(await network.listen())
        server = Server(room, guard, listening)
        server.start()
        try:
            async with browser() as one:
                page = await one.page(guard.url(LEAD))
                said = []

                async def tell(count):
                    for _ in range(count):
                        said.append(f"line {len(said)}")
                        room.note("", said[-1])

                await tell(3)
                await page.until(f"{LINES} === {json.dumps(','.join(said))}")
                for count in (5, 300):
                    network.cut()
                    await tell(count)
                    await page.until("document.querySelector('#connection').innerText.includes('no connection')")
                    assert await page.run("document.querySelector('#notice').hidden") is False
                    network.up = True
                    await tell(1)
                    await page.until(
                        f"{LINES} === {json.dumps(','.join(said[-300:]))}"
                        if count < 300
                        else f"{LINES}.endsWith({json.dumps(','.join(said[-300:]))})"
                    )
                    await page.until("document.querySelector('#connection').innerText === 'live'")
                    assert await page.run("document.querySelector('#notice').hidden") is True
                network.cut()
                for number in range(1000):
                    room.note("", f"far too many {number}")
                network.up = True
                await page.until("document.querySelector('#notice').innerText.includes('updates')")
                await page.until("document.querySelector('#lines .said').innerText === 'far too many 999'")
                numbers = await page.run(
                    "[...document.querySelectorAll('#lines li')].map((line) => Number(line.dataset.n))"
                )
                assert numbers == sorted(set(numbers), reverse=True)
        finally:
            network.close()
            server.end()


async def test_a_keyboard_reaches_the_stop_button_the_question_and_the_timeline(room, browser, pressed):
    answers = []
    async with browser() as one:
        page = await one.page(room.lead_url)
        plays(room)
        await page.until(DRAWN)
        focused = "document.activeElement.id || document.activeElement.innerText"
        await page.press("Tab")
        assert await page.run(focused) == "stop"
        await page.press("Enter")
        await page.until("document.querySelector('#sure').open")
        assert await page.run(focused) == "keep", "Enter alone stops nothing"
        await page.press("Escape")
        await page.until("!document.querySelector('#sure').open")
        assert pressed == []
        with room.asking("Start the next one?", "go or no-go?", [("Go", ""), ("End", "e")], answers.append):
            await page.until("!document.querySelector('#question').hidden")
            await page.press("Tab", "Tab")
            assert await page.run(focused) == "End"
            await page.press("Enter")
            async with asyncio.timeout(WITHIN_S):
                while not answers:
                    await asyncio.sleep(0.05)
        await page.run("document.querySelector('#lanes').focus()")
        await page.press(*["ArrowLeft"] * 20)
        await page.until("document.querySelector('#readout').innerText.includes('kv-writes')")
        assert "disk.latency on consul-1" in await page.text("#readout")
        await page.press("Escape")
        await page.until("!document.querySelector('#readout').innerText.includes('kv-writes')")
        await page.run("document.querySelector('#stop').focus()")
        await page.press("Enter", "Tab")
        assert await page.run(focused) == "yes"
        await page.press("Enter")
        await page.until("document.querySelector('#phase').innerText.startsWith('stopping')")
        assert await page.run("document.querySelector('#stop').disabled") is True
    assert answers == ["e"]
    assert pressed == ["stop"]


LOW = """[...document.querySelectorAll('button')].filter((each) => each.offsetParent && each.offsetHeight < 36)
  .map((each) => each.innerText)"""
"""Buttons that a thumb does not hit."""
LONG = "a-very-long-name-of-a-cluster-without-a-single-place-to-break-it-" * 3


@pytest.mark.parametrize("dark", [False, True])
async def test_on_a_phone_nothing_is_wider_than_the_screen(room, browser, dark):
    async with browser() as one:
        page = await one.page(room.lead_url, width=390, height=844, dark=dark, still=True)
        room.plans(LONG, [LONG], people=[LONG], goals=[LONG])
        room.predicted(1, "q", LONG, LONG, LONG)
        plays(room, seed_text=LONG)
        room.write("scribe", LONG, watchers=True)
        ends(room, seed_text=LONG)
        with room.asking(LONG, LONG, [("Go", ""), ("End the day here", "e")], lambda _: None):
            await page.until(f"{DRAWN} && !document.querySelector('#question').hidden")
            await page.until("document.querySelector('#verdict').innerText.includes('FAIL')")
            assert await page.run("document.documentElement.scrollWidth") == 390
            assert await page.run(LOW) == []
            ground = await page.run("getComputedStyle(document.body).backgroundColor")
            assert ground == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
            assert await page.run("getComputedStyle(document.querySelector('#connection')).transitionDuration") == "0s"


@pytest.mark.long
@pytest.mark.lie
def test_two_hours_of_a_run_take_little_of_the_runner_and_of_the_browser(room, browser):
    """While two browsers look on that take nothing. What is measured is this process, and the page's own memory."""
    process = psutil.Process()

    async def main():
        stuck = [
            socket.create_connection(("127.0.0.1", int(room.lead_url.split(":")[2].split("/")[0]))) for _ in (1, 2)
        ]
        try:
            for each in stuck:
                host = "{}:{}".format(*each.getpeername())
                path = room.lead_url.split(host)[1]
                each.sendall(f"GET {path}events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            async with browser() as one:
                page = await one.page(room.lead_url)
                gc.collect()
                before = process.memory_info().rss
                room.begins("two hours")
                for at in range(0, 7200, 2):
                    room.tell(simulated_run.at_time(simulated_run.tick(at, 7200), at))
                    room.tell(Note(t_ns=at * 10**9, text=f"line {at} {'x' * 200}"))
                    if at % 100 == 0:
                        await asyncio.sleep(0)
                await page.until("document.querySelector('#phase').innerText.includes('119:58 into the run')")
                await page.until("document.querySelector('#lines li').innerText.includes('line 7198')")  # told after it
                grown = process.memory_info().rss - before
                heap = (await page.call("Runtime.getHeapUsage"))["usedSize"]
                nodes = await page.run("document.querySelectorAll('*').length")
                assert "8 s" in await page.text("#scale")
            return grown, heap, nodes
        finally:
            for each in stuck:
                each.close()

    grown, heap, nodes = asyncio.run(main())
    print(f"the runner grew by {grown / 1e6:.1f} MB, the page takes {heap / 1e6:.1f} MB and {nodes} nodes")
    assert grown < LIMIT_BYTES / 4
    assert heap < LIMIT_BYTES / 4
    assert nodes < 6000
