"""The HTML report in a real browser: it draws, it zooms, it logs no error, and it asks the network for nothing."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest

from browser import chromium
from go_profiles import profiled
from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict
from hashidrill.reports.html import write_html
from hashidrill.testing.recordings import RecordingBuilder

pytestmark = pytest.mark.needs("chromium")

# a drag over the middle of the first plot, then what the page has become; then a double click
DRAG = """
<script>
Element.prototype.setPointerCapture = () => {};
const plot = () => document.querySelector(".plot svg");
const left = () => plot().getBoundingClientRect().left;
const at = (x) => ({clientX: left() + x, pointerId: 1, bubbles: true});
const act = (type, x) => plot().dispatchEvent(new PointerEvent(type, at(x)));
const axis = () => [...plot().querySelectorAll("text")].map((text) => text.textContent).join(" ");
const before = axis();
act("pointerdown", 300); act("pointermove", 400); act("pointerup", 400);
const zoomed = axis();
act("pointermove", 350);
const read = document.querySelector(".readout").textContent;
plot().dispatchEvent(new MouseEvent("dblclick", {bubbles: true}));
document.body.dataset.result = JSON.stringify({before, zoomed, read, after: axis()});
</script>"""


BOXES = """(() => {
  const whole = document.querySelector("svg.flame").getBoundingClientRect().width;
  return Object.fromEntries([...document.querySelectorAll("svg.flame > svg")].map((box) => {
    const place = box.querySelector("rect").getBoundingClientRect();
    const name = box.querySelector("title").textContent.split(":")[0].split("stream.").pop();
    return [name, [place.width / whole, place.height + 1]];
  }));
})()"""
"""{name: [share of the width, height]} of the boxes as they are drawn."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Twenty seconds of a slow disk under two loads; the leader changes while it recovers."""

    def sick(at):
        return 3.0 if 10 <= at < 30 else 0.016

    folder = tmp_path_factory.mktemp("report")
    run = RecordingBuilder(folder / "run").fault("disk.latency", "consul-1", at=10, until=30)
    run.load("kv-writes", latency=sick).load("kv-reads", outcome=lambda at: "fail" if at % 5 < 0.5 else "ok")
    run.leader(lambda at: "consul-1" if at < 40 else "consul-2")
    for host in run.hosts:
        for signal in ("raft.commit_time", "raft.dispatch_log", "disk.fsync", "process.cpu"):
            run.series(signal, sick, host=host)
    judgements = [Judgement("writes_recover(load=kv-writes)", "writes_recover", Finding.BROKEN, "still 3.0 s")]
    return write_html(run.build(), RunVerdict([], judgements), folder)


def opened(browser: str, page: Path, tmp_path: Path) -> tuple[str, list[str], list[str]]:
    """The page's DOM once its script has run, what the console said, and every address that was asked for."""
    profile, log = tmp_path / "profile", tmp_path / "net.json"
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={profile}",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--enable-logging=stderr",
            f"--log-net-log={log}",
            "--window-size=1300,900",
            "--virtual-time-budget=3000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    asked = [event["params"] for event in json.loads(log.read_text())["events"] if "url" in event.get("params", {})]
    # the browser's own look-ups (updates, the time) have no initiator; what a page asks for has the page's
    addresses = [one["url"] for one in asked if one.get("initiator", "not an origin") != "not an origin"]
    return done.stdout, console, addresses


@pytest.mark.long
def test_the_report_draws_every_curve_and_leaves_console_and_network_alone(page, tmp_path, tool):
    dom, console, addresses = opened(tool("chromium"), page, tmp_path)
    marks = re.findall(r'<path class="mark [^"]*" d="(M[^"]+)"', dom)
    assert len(marks) == 2 * 4 + 1 + 4 * 3, "four curves a load, one load's errors, four signals of three servers"
    assert any(len(mark) > 500 for mark in marks), "a curve of many points"
    assert dom.count('class="band"') >= 8, "the fault's window is shaded in every panel"
    assert "leader: consul-2" in dom
    assert "NaN" not in "".join(marks)
    assert console == []
    assert addresses == []


@pytest.mark.long
def test_a_script_that_fails_and_a_page_that_loads_would_be_noticed(page, tmp_path, tool):
    """The defects that the test above must catch, planted."""
    spoiled = tmp_path / "spoiled.html"
    text = re.sub(r"<meta http-equiv[^>]+>", "", page.read_text()).replace('"use strict";', "undefined_name();")
    spoiled.write_text(text.replace("<main>", '<main><img src="http://127.0.0.1:9/planted.png">'))
    dom, console, addresses = opened(tool("chromium"), spoiled, tmp_path)
    assert '<path class="mark' not in dom
    assert any("undefined_name" in line for line in console)
    assert "http://127.0.0.1:9/planted.png" in addresses


@pytest.mark.long
def test_the_policy_in_the_page_stops_markup_that_was_injected(page, tmp_path, tool):
    injected = tmp_path / "injected.html"
    planted = '<main><img src="http://127.0.0.1:9/x.png"><script>document.title = "owned"</script>'
    injected.write_text(page.read_text().replace("<main>", planted))
    dom, _, addresses = opened(tool("chromium"), injected, tmp_path)
    assert "<title>owned</title>" not in dom
    assert addresses == []
    assert '<path class="mark' in dom, "its own script still runs"


@pytest.mark.long
def test_a_drag_zooms_a_pointer_reads_and_a_double_click_shows_the_whole_run(page, tmp_path, tool):
    driven = tmp_path / "driven.html"
    text = re.sub(r"<meta http-equiv[^>]+>", "", page.read_text())
    driven.write_text(text.replace("</body>", f"{DRAG}</body>"))
    dom, console, _ = opened(tool("chromium"), driven, tmp_path)
    assert console == []
    found = re.search(r'data-result="([^"]+)"', dom)
    assert found, "the drag ran to its end"
    result = json.loads(found[1].replace("&quot;", '"'))
    assert "50 s" in result["before"]
    assert "50 s" not in result["zoomed"]
    assert re.search(r"\b1\d(\.\d)? s", result["zoomed"]), result["zoomed"]
    assert "method" in result["read"]
    assert "disk.latency on consul-1" in result["read"]
    assert result["after"] == result["before"]


@pytest.mark.long
def test_a_flame_graph_fits_a_phone_and_names_are_cut_where_their_box_ends(tmp_path, tool):
    page = write_html(profiled(tmp_path / "run").build(), RunVerdict([], []), tmp_path)

    async def looked():
        async with chromium(tool("chromium")) as browser:
            narrow = await browser.page(page.as_uri(), width=390)
            await narrow.until("!!document.querySelector('svg.flame')")
            wide = await narrow.run("document.documentElement.scrollWidth")
            boxes = await narrow.run(BOXES)
            return wide, boxes, narrow.console

    wide, boxes, console = asyncio.run(looked())
    assert wide == 390
    assert console == []
    assert boxes["(*Subscription).Next"] == pytest.approx([0.769, 17], abs=0.01)
