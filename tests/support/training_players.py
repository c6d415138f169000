"""Scripted trainees: an expert for each scenario, one who restarts everything, and one who only says the right words.

An expert knows the trade and not the seed: which host is sick, and often which of two truths it is, comes from what the
vendors' own tools say. `Game` is what a script has of a game: commands on hosts, and words to the trainer.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

SETTLES_WITHIN_S = 150.0
WELL_S = 0.3
"""A KV write that takes longer is not well: Roblox's normal p50."""
_AGAIN_S = 1.0


class Game(Protocol):
    """A game that is on, after its pager has gone."""

    def on(self, host: str, command: str) -> tuple[int, str]: ...
    def say(self, what: str, words: str = "") -> str: ...
    def done(self) -> Any: ...


class NotFoundError(AssertionError):
    """An expert who does not see what there is to be seen: the scenario, or the script, is wrong."""


def read(game: Game, host: str, command: str) -> str:
    """What a command prints. Raises NotFoundError where it fails."""
    code, text = game.on(host, command)
    if code:
        raise NotFoundError(f"{host}: {command}: exit code {code}: {text.strip()[-300:]}")
    return text


def until(what: str, looks: Callable[[], Any], within_s: float = SETTLES_WITHIN_S) -> Any:
    """The first true answer. Raises NotFoundError."""
    deadline = time.monotonic() + within_s
    while True:
        if found := looks():
            return found
        if time.monotonic() > deadline:
            raise NotFoundError(f"{what}: not within {within_s:g}s")
        time.sleep(_AGAIN_S)


def servers(game: Game, host: str = "consul-1") -> dict[str, str]:
    """Consul's servers and their addresses, as gossip knows them: the failed ones too."""
    rows = [line.split() for line in read(game, host, "consul members").splitlines()[1:]]
    return {row[0]: row[1].rpartition(":")[0] for row in rows if len(row) > 3 and row[3] == "server"}


def members(game: Game, state: str, host: str) -> list[str]:
    """The members in that state."""
    rows = [line.split() for line in read(game, host, "consul members").splitlines()[1:]]
    return [row[0] for row in rows if len(row) > 2 and row[2] == state]


def leader(game: Game, host: str = "consul-1") -> str:
    """Raises NotFoundError where nobody leads."""

    def looks() -> str | None:
        _, text = game.on(host, "consul operator raft list-peers -stale=true")
        rows = [line.split() for line in text.splitlines()]
        return next((row[0] for row in rows if len(row) > 3 and row[3] == "leader"), None)

    return str(until("a leader", looks, 60))


def write_s(game: Game, host: str) -> float:
    """How long a KV write takes from there; 20 where it fails."""
    started = time.monotonic()
    code, text = game.on(
        host, "curl -s -m 20 -o /dev/null -w '%{time_total}' -X PUT -d x $CONSUL_HTTP_ADDR/v1/kv/probe"
    )
    number = re.search(r"\d+\.\d+", text)
    return float(number[0]) if code == 0 and number else max(20.0, time.monotonic() - started)


def well(game: Game, host: str, within_s: float = SETTLES_WITHIN_S) -> None:
    """Waits until writes from there are quick and users see no errors: a backlog has drained. Raises NotFoundError."""
    until(f"quick writes at {host}", lambda: all(write_s(game, host) < WELL_S for _ in range(5)), within_s)
    users_well(game, within_s)


def users_well(game: Game, within_s: float = SETTLES_WITHIN_S) -> None:
    """Waits until no load has errors, as `users` shows them. Raises NotFoundError."""

    def look() -> bool:
        shares = [float(share) for share in re.findall(r"([\d.]+)%", game.say("users"))]
        return bool(shares) and max(shares) < 1

    until("users without errors", look, within_s)


def found(game: Game, diagnosis: str) -> None:
    """Says it."""
    game.say("detected")
    game.say("diagnosis", diagnosis)


def take_leadership_from(game: Game, host: str) -> None:
    """A leader too sick to hand over ("leadership transfer timeout") is stopped: the majority is there without it."""
    code, _ = game.on(host, "consul operator raft transfer-leader")
    if code:
        read(game, host, "systemctl stop consul")


def raft_files(game: Game, hosts: Sequence[str]) -> dict[str, int]:
    """The size of each server's raft.db."""
    return {host: int(read(game, host, "stat -c %s $CONSUL_DATA/raft/raft.db").split()[-1]) for host in hosts}


def without_streaming(game: Game, clients: Sequence[str]) -> None:
    """Client agents go back to long polls, one after the other."""
    for host in clients:
        edit = 'new=$(jq .use_streaming_backend=false "$CONSUL_CONFIG") && printf "%s\\n" "$new" > "$CONSUL_CONFIG"'
        read(game, host, edit)
        read(game, host, "systemctl restart consul")


def _another(server: str) -> str:
    return "consul-2" if server == "consul-1" else "consul-1"


def synced_s(game: Game, host: str) -> float:
    """How long 512 bytes take to be on that host's disk."""
    timed = "from=$(date +%s%N); dd if=/dev/zero of=$CONSUL_DATA/probe bs=512 count=1 conv=fsync 2>/dev/null; "
    text = read(game, host, f"{timed} rm $CONSUL_DATA/probe; echo $(( $(date +%s%N) - from ))")
    return int(text.split()[-1]) / 1e9


# the experts


def first(game: Game) -> None:
    leads = leader(game)
    took = {host: synced_s(game, host) for host in servers(game)}
    if took[leads] < max(0.2, 4 * sorted(took.values())[-2]):
        raise NotFoundError(f"{leads} leads, and a sync takes {took}")
    found(game, f"the disk of {leads}, which leads, is slow")
    take_leadership_from(game, leads)
    well(game, _another(leads))


def payday(game: Game) -> None:
    used = {
        host: int(read(game, host, "df --output=pcent $CONSUL_DATA | tail -n 1").strip().rstrip("%"))
        for host in servers(game)
    }
    full = [host for host, percent in used.items() if percent == 100]
    if not full:
        raise NotFoundError(f"no disk is full: {used}")
    found(game, f"the disks of {' and '.join(full)} are full: a core dump beside Consul's data")
    for host in full:
        read(game, host, "rm $CONSUL_DATA/../core.*")
        if game.on(host, "systemctl is-active consul")[0]:
            read(game, host, "systemctl restart consul")
    well(game, "consul-1")


def morning_shift(game: Game) -> None:
    sizes = raft_files(game, list(servers(game)))
    leads = leader(game)
    if max(sizes, key=lambda host: sizes[host]) != leads or sizes[leads] < 5 * min(sizes.values()):
        raise NotFoundError(f"{leads} leads, and the files are {sizes}")
    found(game, f"raft.db of {leads}, which leads, is bloated: its freelist is written with each commit")
    take_leadership_from(game, leads)
    well(game, _another(leads))


def quarter_end(game: Game) -> None:
    asked = "curl -si $CONSUL_HTTP_ADDR/v1/health/service/routed?cached"
    if "streaming" not in read(game, "client-1", asked).lower():
        raise NotFoundError("the routers do not use streaming")
    found(game, "streaming: with so many views every registration wakes all subscribers")
    without_streaming(game, [f"client-{number}" for number in (1, 2, 3, 4)])
    well(game, leader(game))


def cron_hour(game: Game) -> None:
    leads = leader(game)
    if write_s(game, leads) < WELL_S:
        raise NotFoundError(f"{leads} is quick")
    found(game, f"the leader {leads} has a slow disk, and claims for locks are retried into the queue")
    take_leadership_from(game, leads)
    well(game, _another(leads))


def _slowest(game: Game, hosts: Mapping[str, str], of: str) -> dict[str, float]:
    """The seconds that ten stale reads take at each, asked from another host."""
    took = {}
    for host, address in hosts.items():
        read_one = f"curl -s -m 3 -o /dev/null -w '%{{time_total}}\\n' http://{address}:8500/v1/{of}"
        loop = f"for i in 1 2 3 4 5 6 7 8 9 10; do {read_one}; done"
        _, text = game.on("client-1" if host != "client-1" else "consul-1", f"{loop}; true")
        took[host] = sum(map(float, re.findall(r"^\d+\.\d+", text, re.MULTILINE)))
    return took


def long_tail(game: Game) -> None:
    took = _slowest(game, servers(game), "status/peers")
    worst = max(took, key=lambda host: took[host])
    if took[worst] < 4 * sorted(took.values())[-2]:
        raise NotFoundError(f"no server stands out: {took}")
    found(game, f"{worst}, a follower, loses packets")
    read(game, worst, f"rotation out {worst}")
    well(game, "consul-1")


def two_racks(game: Game) -> None:
    gone = until("failed members", lambda: members(game, "failed", "consul-1"), 60)
    found(game, f"{' and '.join(gone)} are cut off from the network; the other three have the quorum")
    for host in gone:
        read(game, "consul-1", f"rotation out {host}")
        read(game, "consul-1", f"consul force-leave {host}")
    well(game, "consul-1")


def silence(game: Game) -> None:
    clients = {f"client-{number}": f"10.73.0.3{number}" for number in (1, 2, 3)}
    asks = {host: "client-2" if host == "client-1" else "client-1" for host in clients}  # from where users are
    quiet = [
        host
        for host, at in clients.items()
        if game.on(asks[host], f"curl -s -m 3 http://{at}:8500/v1/status/leader")[0]
    ]
    if len(quiet) != 1:
        raise NotFoundError(f"these do not answer: {quiet}")
    host = quiet[0]
    if game.on(host, "curl -s -m 3 $CONSUL_HTTP_ADDR/v1/status/leader")[0]:
        found(game, f"the agent of {host} is frozen: its process is stopped")
        read(game, host, "systemctl restart consul")
        until(
            f"{host} to answer",
            lambda: game.on("consul-1", f"curl -s -m 3 http://{clients[host]}:8500/v1/status/leader")[0] == 0,
        )
    else:
        found(game, f"{host}: connections to its API are half-open, they deliver nothing")
        read(game, host, f"rotation out {host}")
    well(game, "consul-1")


def aftershock(game: Game) -> None:
    counted = {}
    for host in ("client-1", "client-2"):
        counted[host] = int(read(game, host, "ss -Htn state established '( sport = :8500 )' | wc -l").split()[-1])
    busiest = max(counted, key=lambda host: counted[host])
    found(game, f"a retry storm: retries keep the queue of the agent on {busiest} full")
    read(game, busiest, "systemctl restart consul")
    users_well(game)


def lights_on(game: Game) -> None:
    states = {
        host: game.on(host, "curl -s -m 3 $CONSUL_HTTP_ADDR/v1/status/leader")[0]
        for host in ("consul-1", "consul-2", "consul-3")
    }
    silent = [host for host, code in states.items() if code]
    if len(silent) != 1:
        raise NotFoundError(f"these do not answer: {silent}")
    found(game, f"{silent[0]} is frozen: its process is stopped (state T)")
    read(game, silent[0], "systemctl restart consul")
    until("no failed member", lambda: not members(game, "failed", silent[0]))
    well(game, silent[0])


def night_batch(game: Game) -> None:
    placed = json.loads(read(game, "nomad-1", "curl -s $NOMAD_ADDR/v1/allocations"))
    failed: dict[str, int] = {}
    for one in placed:
        if one["ClientStatus"] == "failed":
            failed[one["NodeName"]] = failed.get(one["NodeName"], 0) + 1
    if len(failed) != 1:
        raise NotFoundError(f"failed allocations by node: {failed}")
    worst = next(iter(failed))
    found(game, f"{worst} is a black hole: every allocation fails there")
    nodes = json.loads(read(game, "nomad-1", "curl -s $NOMAD_ADDR/v1/nodes"))
    node = next(one["ID"] for one in nodes if one["Name"] == worst)
    read(game, "nomad-1", f"nomad node eligibility -disable {node}")


def patch_night(game: Game) -> None:
    closed = []
    for host in ("vault-1", "vault-2", "vault-3"):
        _, text = game.on(host, "vault status -format=json")
        if json.loads(text[text.index("{") : text.rindex("}") + 1])["sealed"]:
            closed.append(host)
    if len(closed) != 1:
        raise NotFoundError(f"sealed: {closed}")
    found(game, f"{closed[0]}, a standby, is sealed")
    read(game, closed[0], 'vault operator unseal "$VAULT_UNSEAL_KEY"')
    users_well(game)


def final(game: Game) -> None:
    names = list(servers(game))
    sizes, leads = raft_files(game, names), leader(game)
    if max(sizes, key=lambda host: sizes[host]) != leads:
        raise NotFoundError(f"{leads} leads, and the files are {sizes}")
    game.say("detected")
    game.say("diagnosis", f"{leads} leads, and its raft.db is bloated")
    read(game, leads, "systemctl stop consul")
    others = [host for host in names if host != leads]
    leader(game, others[0])
    game.say("diagnosis", f"two causes: the bloated raft.db of {leads}, which led, and streaming with so many views")
    without_streaming(game, [f"client-{number}" for number in (1, 2, 3, 4)])
    until(f"quick writes at {others[0]}", lambda: write_s(game, others[0]) < WELL_S)
    # a third of all writes go to the one that is out
    read(game, leads, 'rm -rf "$CONSUL_DATA"/* && systemctl start consul')
    well(game, others[0])


EXPERTS: dict[str, Callable[[Game], None]] = {
    expert.__name__.replace("_", "-"): expert
    for expert in (
        *(first, payday, morning_shift, quarter_end, cron_hour, long_tail, two_racks, silence),
        *(aftershock, lights_on, night_batch, patch_night, final),
    )
}
"""One for each scenario; each leaves `done` to whoever plays it."""


def bungle(game: Game, hosts: Sequence[str]) -> None:
    """Restarts everything, as fast as a person can, and says nothing of why."""
    for host in hosts:
        product = {"vault": "vault", "nomad": "nomad", "node": "nomad"}.get(host.rpartition("-")[0], "consul")
        game.on(host, f"systemctl restart {product}")


def guess(game: Game, exact: str) -> None:
    """The right words, and no repair."""
    found(game, exact)
