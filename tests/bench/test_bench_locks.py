"""What 180,000 contenders for locks take of a real Consul server, from two smaller counts on one server.

pytest -m bench -s tests/bench/test_bench_locks.py
"""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

import places
from bench_runs import table
from hashidrill.lab.provision import binaries

pytestmark = pytest.mark.bench

SECONDS = 8


def contenders(*arguments):
    """What that many contenders did and cost: a process that runs beside the server alone."""
    command = [sys.executable, places.SUPPORT / "lock_contenders.py", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def consul(tmp_path_factory):
    """A development server that takes thousands of connections of one address."""
    folder = tmp_path_factory.mktemp("consul")
    http, rpc = _ports()
    config = {
        "ports": {"http": http, "server": rpc, "dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1},
        "limits": {"http_max_conns_per_client": 8000},
        "log_level": "error",
    }
    (folder / "config.json").write_text(json.dumps(config))
    command = [binaries.ensure("consul", "1.22.2").path, "agent", "-dev", f"-config-file={folder / 'config.json'}"]
    with (folder / "consul.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{http}"
            _put_when_ready(f"{url}/v1/kv/ready")
            yield url, process.pid
        finally:
            process.kill()


def _ports():
    import socket

    found = []
    with contextlib.ExitStack() as held:
        for _ in range(2):
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            found.append(probe.getsockname()[1])
    return found


def _put_when_ready(url):
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, b"1", method="PUT"), timeout=5):
                return
        except (OSError, urllib.error.URLError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


HOLDERS, LEASES, NORMAL_S, ABUSIVE_S, LOOK_EVERY_S = 180_000, 60_000, 30, 4.5, 15
"""The larger load test of juju-2021 and its two paces of renewal; how often a waiting `consul lock` asks again."""


def test_where_180000_contenders_for_60000_leases_break_first(capsys, consul):
    """Two counts on one real server, and from their difference what 180,000 take: a table for the incidents' page."""
    url, pid = consul
    few, many = (contenders(url, count, SECONDS, pid) for count in (1500, 6000))
    assert (few["waiting"], many["waiting"]) == (1000, 4000)

    def each(who, what):
        grew = [one["after"][who][what] - one["before"][who][what] for one in (few, many)]
        return (grew[1] - grew[0]) / 4500

    goroutines = [one["after"]["goroutines"] - one["before"]["goroutines"] for one in (few, many)]
    holds = [
        ("agent: memory", each("agent", 0) / 1e3, "kB", HOLDERS / 1e6, "GB"),
        ("agent: goroutines", (goroutines[1] - goroutines[0]) / 4500, "", HOLDERS, ""),
        ("agent: file descriptors", each("agent", 1), "", HOLDERS, ""),
        ("thin client: memory", each("client", 0) / 1e3, "kB", HOLDERS / 1e6, "GB"),
        ("thin client: file descriptors", each("client", 1), "", HOLDERS, ""),
    ]
    rows = [("", "for each", f"for {HOLDERS}")]
    rows += [(name, f"{value:.3g} {unit}", f"{value * times:.3g} {total}") for name, value, unit, times, total in holds]
    for name, (per_s, cpu_s), wanted in (
        ("renewals, every 30 s", many["renewals"], HOLDERS / NORMAL_S),
        ("renewals, every 4.5 s", many["renewals"], HOLDERS / ABUSIVE_S),
        ("waiting queries, every 15 s", many["looks"], (HOLDERS - LEASES) / LOOK_EVERY_S),
    ):
        rows.append((f"{name}: {wanted:.0f}/s", f"{cpu_s * 1e6:.0f} us", f"{wanted * cpu_s:.2g} cores"))
        rows.append(("  at most, on this machine", f"{per_s:.0f}/s", ""))
    table(capsys, "contenders for locks, two of three waiting, on one real server", rows)
    assert min(value for _, value, *_ in holds) > 0
