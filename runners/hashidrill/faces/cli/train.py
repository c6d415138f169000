"""train, say: games for people on call."""

import contextlib
import enum
import getpass
import os
import secrets
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from hashidrill.core.errors import DatacenterError, HashidrillError, UsageError
from hashidrill.core.util.files import private_folder, write_whole
from hashidrill.core.util.safe_json import parse
from hashidrill.faces.cli.common import Install, Json, RunsDir, console, examples, own_program, print_json, print_table
from hashidrill.faces.cli.serving import Port, Serve, check_address
from hashidrill.gamedays.training import classroom, games
from hashidrill.gamedays.training.campaign import best, read_campaign, standing, the_campaign, told
from hashidrill.gamedays.training.card import FAILED, MARKDOWN_NAME, NOT_COUNTED, PARTLY, PASSED, Card, text_lines
from hashidrill.gamedays.training.course import Course, chosen, course_of
from hashidrill.gamedays.training.game_log import OVER, PAGED, QUIET, WATCHED, WORDS
from hashidrill.gamedays.training.games import shell_command
from hashidrill.gamedays.training.scenario import find_scenario, list_scenarios, read_scenario
from hashidrill.lab.provision.packages import allow_installing
from hashidrill.lab.runs.launch import RUNS_DIR, new_folder
from hashidrill.reports.live import display as live
from hashidrill.reports.text import plain_line

TRAINING = "training"
_LOOPBACK = "127.0.0.1"
_VARIABLE = "HASHIDRILL_TRAINEE"
_SEEDS = 10_000
_AGAIN = "(Enter brings your prompt back; `pager` shows this again)"
_LOOK_S, _CLASS_EVERY_S = 0.5, 1.0
_PAGED_WITHIN_S = 600.0
_GIVEN_UP = "the game counts as given up; its faults are removed now, and its score card will be in {out}"
_CODES = {PASSED: 0, PARTLY: 1, FAILED: 1, NOT_COUNTED: 3}


class Judged(enum.StrEnum):
    RIGHT = "right"
    WRONG = "wrong"


Trainee = Annotated[
    str | None,
    typer.Option(
        "--trainee",
        metavar="NAME",
        envvar=_VARIABLE,
        help="Name of the player (default: the user of this machine).",
    ),
]


def register(app: typer.Typer) -> None:
    calls = (
        "train",
        "train first",
        "train --list",
        "train first --seed 7 --trainee ada",
        "train first --serve",
        "train --games",
        "train first --seats ada,ben,eva",
        'train --overrule right --because "the same in other words"',
        "train --cancel --trainee ben",
    )
    app.command(epilog=examples(*calls))(train)
    app.command(
        epilog=examples("say detected", "say diagnosis the network of consul-3 loses packets", "say done"),
        context_settings={"ignore_unknown_options": True},
    )(say)


def train(
    scenario: Annotated[str | None, typer.Argument(help="A name or a file (default: show the next stage).")] = None,
    *,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Variant to play again (default: random; the card names it).")
    ] = None,
    trainee: Trainee = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Show the scenarios, and what the trainee has played.")
    ] = False,
    on: Annotated[bool, typer.Option("--games", help="Show the games in progress, and the state of each.")] = False,
    seats: Annotated[
        str | None,
        typer.Option(
            "--seats",
            metavar="SEATS",
            help="For a trainer: hold a class, with one page that shows all its games. SEATS: how many, or the"
            " trainees' names (ada,ben), or a file of their public SSH keys.",
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="ADDRESS", help="With --seats: the address of this machine on which the page is served."
        ),
    ] = _LOOPBACK,
    overrule: Annotated[
        Judged | None,
        typer.Option(
            "--overrule", help="For the trainer, during a game: rule that the last diagnosis is right or wrong."
        ),
    ] = None,
    because: Annotated[
        str, typer.Option("--because", metavar="WORDS", help="With --overrule: the reason, which the score card shows.")
    ] = "",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="For the trainer: end the running game without a score.")
    ] = False,
    shell: Annotated[bool, typer.Option("--shell/--no-shell", help="Open a shell of the game.")] = True,
    serve: Serve = False,
    port: Port = 0,
    tell_trainer: Annotated[
        Path | None,
        typer.Option(
            "--tell-trainer",
            metavar="PATH",
            help="With --serve: the new file, or the terminal, that gets the address of the trainer's page"
            " (default: a file in your state directory that only you can read).",
        ),
    ] = None,
    as_json: Json = False,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Be on call for a real cluster that gets sick.

    Find the cause and repair it; you are scored by what the users of the datacenter see. A shell opens on one of the
    hosts; `hashidrill lab shell HOST` opens more, in any terminal. Report what you see with `hashidrill say`. After
    `hashidrill say done`, the game watches the users for a while and then prints the score card. If you start the
    command again while your game is on, you are back in that game.

    Exit codes: 0 passed, 1 failed or without a diagnosis, 2 bad usage, 3 not counted, 130 interrupted.
    """
    who = _who(trainee)
    if overrule is not None or because:
        _overrule(trainee, overrule, because)
        return
    if cancel:
        live.say(console(), str(games.ask(games.find_game(trainee), {"op": "cancel"})["text"]))
        return
    if scenario is None or listing or on:
        if seats is not None:
            raise UsageError("--seats: a class plays, so name its scenario: hashidrill train first --seats 8")
        (_list if listing else _games if on else _campaign)(who, as_json=as_json)
        return
    path = find_scenario(scenario).absolute()
    written = read_scenario(path)
    number = secrets.randbelow(_SEEDS) if seed is None else seed
    course = course_of(written, chosen(written, number))
    if seats is not None:
        alone = serve or tell_trainer is not None
        _hold_class(course, path, seats, runs_dir, seed=seed, listen=listen, port=port, as_json=as_json, alone=alone)
        return
    if listen != _LOOPBACK:
        raise UsageError("--listen is about the page of a class: use it with --seats")
    say_to = console()
    interactive = shell and sys.stdin.isatty() and not as_json
    if interactive:
        _go_on(course, who, say_to)
    page = _page_asked(who, serve=serve, port=port, to=tell_trainer, shell=shell)
    on_now = len(games.all_games())
    if on_now and (
        warning := classroom.Carries.here(course, on_now).trouble(1)
    ):  # for a single game, the engine's own check is enough
        live.say(say_to, f"warning: {warning}")
    allow_installing(install)
    out = new_folder(runs_dir.parent / TRAINING, f"{course.name}-{who}")
    request = {"scenario": str(path), "seed": number, "trainee": who, "out": str(out), "serve": page}
    try:
        started = games.start(request)
    except BaseException:
        with contextlib.suppress(OSError):
            out.rmdir()
        raise
    _play(course, started, who, say_to, shell=interactive)
    _ends(out, started.log, say_to, as_json=as_json)


def _go_on(course: Course, who: str, say_to: Console) -> None:
    """Returns to that trainee's game of the scenario if it is on: after a lost connection, or in another terminal."""
    game = games.game_of(who)
    if game is not None and game.scenario == course.name:
        live.say(say_to, f"your game of {course.name} goes on")
        _attend(course, game, say_to, shell=True)  # noqa: S604 - our own parameter, not subprocess's
        _ends(Path(game.out), games.log_of(who), say_to, as_json=False)


def _ends(out: Path, log: Path, say_to: Console, *, as_json: bool) -> NoReturn:
    """Prints the score card. Raises typer.Exit with the result's code, or DatacenterError if there is no card."""
    card = _card(out, log)
    if as_json:
        print_json(card)
    else:
        live.say(say_to, "")  # after the prompt of a shell that ended with the game
        for line in text_lines(Card.from_data(card)):
            live.say(say_to, line)
        live.say(say_to, f"  debrief         {out / MARKDOWN_NAME}")
    raise typer.Exit(_CODES[card["result"]])


def say(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"One of: {', '.join(WORDS)}.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="For a diagnosis: what is wrong, in your words.")
    ] = None,
    trainee: Trainee = None,
    as_json: Json = False,
) -> None:
    """In a training game: report what you see, or that you are done.

    `ready`: you have looked around; from now on something may break. `detected`: you see that something is wrong.
    `diagnosis WORDS`: what is wrong, and where; the last one counts. `hint`: the next hint, for points. `users`: what
    users see now; `pager`: what they reported. `done`: users are back. `give-up`: ends the game.
    """
    if what not in WORDS:
        raise UsageError(f"say {what!r}: say one of {', '.join(WORDS)}")
    told = games.ask(games.find_game(trainee), {"op": "say", "what": what, "words": " ".join(words or [])})
    if what == "give-up" and trainee not in {None, os.environ.get(_VARIABLE)} and told["ends"]:
        told["text"] = f"{trainee}'s game ends as given up; `hashidrill train --cancel` ends one without a score"
    if as_json:
        print_json({"text": told["text"]})
        return
    for line in str(told["text"]).splitlines():
        live.say(console(), line)


def game_shell(host: str | None, command: list[str], trainee: str | None) -> int:
    """Opens a shell in the game in progress. Returns the shell's exit code, and restores the terminal's settings, even
    if the game ended first.
    """
    if host is not None and "--" in sys.argv and sys.argv[sys.argv.index("--") + 1 :] == [host, *command]:
        command, host = [host, *command], None  # `shell -- COMMAND`: its first word is not a host
    return _shell(games.find_game(trainee or os.environ.get(_VARIABLE)), host, command)


def _overrule(trainee: str | None, judged: Judged | None, because: str) -> None:
    if judged is None or not because.strip():
        raise UsageError("--overrule right|wrong and --because WORDS belong together: the score card shows both")
    request = {"op": "overrule", "right": judged is Judged.RIGHT, "why": because}
    live.say(console(), str(games.ask(games.find_game(trainee), request)["text"]))


def _who(trainee: str | None) -> str:
    if trainee is not None:
        return games.checked_trainee(trainee, f"--trainee, or {_VARIABLE}")
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or "me"
    return games.checked_trainee(user, "the user of this machine; name another with --trainee")


def _page_asked(who: str, *, serve: bool, port: int, to: Path | None, shell: bool) -> dict[str, Any] | None:
    """The page's settings, which the keeper gets; None without --serve. Raises UsageError."""
    if not serve:
        if port or to is not None:
            option = "--port" if port else "--tell-trainer"
            raise UsageError(f"{option} is about the page that --serve serves: use it with --serve")
        return None
    if to is not None and shell and _is_this_terminal(to):
        raise UsageError(
            f"--tell-trainer {to}: this is the trainee's terminal, and the trainer's page shows what is hidden; "
            f"name a file, or another user's terminal"
        )
    if to is None:
        to = games.page_file(who)
        private_folder(to.parent)
        if not any(game.trainee == who for game in games.all_games()):
            to.unlink(missing_ok=True)  # left by a keeper that was killed
    return {"port": port, "to": str(to.absolute())}


def _is_this_terminal(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return sys.stdin.isatty() and path.stat().st_rdev == os.fstat(sys.stdin.fileno()).st_rdev
    return False


def _list(who: str, *, as_json: bool) -> None:
    played = best(who)
    rows: list[dict[str, Any]] = []
    for path in list_scenarios():
        meta = read_scenario(path).scenario.metadata
        game = played.get(meta.name)
        rows.append(
            {
                "name": meta.name,
                "level": meta.level,
                "title": meta.title,
                "limit": str(meta.limit),
                "best": None if game is None else {"result": game.result, "points": game.points},
            }
        )
    rows.sort(key=lambda row: (row["level"], row["name"] != "first", row["name"]))
    if as_json:
        print_json(rows)
        return
    done = [row["best"] and f"{row['best']['result']}, {row['best']['points']}" for row in rows]
    shown = [
        (row["name"], str(row["level"]), row["limit"], row["title"], one or "")
        for row, one in zip(rows, done, strict=True)
    ]
    print_table(("name", "level", "limit", "what users notice", f"best of {who}"), shown)


def _games(_who: str, *, as_json: bool) -> None:
    """For a class's trainer: who plays which game, its state, and the file with the address of the trainer's page."""
    rows: list[dict[str, Any]] = []
    for game in games.all_games():
        page = games.page_file(game.trainee)
        try:
            shown = games.ask(game, {"op": "state"})
            state, left_s = classroom.state_word(shown), shown["left_s"]
        except UsageError:  # the process is just ending
            state, left_s = OVER, None
        rows.append(
            {
                "trainee": game.trainee,
                "scenario": game.scenario,
                "state": state,
                "left_s": None if left_s is None else round(left_s),
                "page": str(page) if page.exists() else None,
            }
        )
    if as_json:
        print_json(rows)
        return
    if not rows:
        live.say(console(), "no game is on")
        return
    left = ["" if row["left_s"] is None else f"{max(row['left_s'], 0) // 60} minutes" for row in rows]
    lines = [
        (row["trainee"], row["scenario"], row["state"], one, row["page"] or "")
        for row, one in zip(rows, left, strict=True)
    ]
    print_table(("trainee", "scenario", "state", "left", "address of the trainer's page"), lines)


def _hold_class(
    course: Course,
    path: Path,
    asked: str,
    runs_dir: Path,
    *,
    seed: int | None,
    listen: str,
    port: int,
    as_json: bool,
    alone: bool,
) -> None:
    """Writes the seats' SSH keys file and serves the page that shows their games, until Ctrl-C. Raises UsageError."""
    from hashidrill.gamedays.warroom.serving import serve as serving  # noqa: PLC0415 - a web server, for a class alone

    if alone:
        raise UsageError("--seats serves a page over all games; --serve and --tell-trainer are about a single game")
    check_address("--listen", listen)
    if (program := own_program()) is None:
        raise UsageError("--seats: SSH cannot start hashidrill: its program is neither next to Python nor on PATH")
    seats = classroom.seats_of(asked)
    carries = classroom.Carries.here(course, len(games.all_games()))
    warning = carries.trouble(len(seats))
    names = [seat.name for seat in seats]
    login = f"ssh {getpass.getuser()}@{socket.gethostname()}"
    about, use = [("trainees type", login), ("this machine", carries.text())], games.CpuUse()
    room = classroom.ClassRoom({"title": course.name, "about": about})
    table = classroom.ScoreTable(names, course.name)
    with serving(port, address=listen, room=room), contextlib.suppress(KeyboardInterrupt):
        keys = new_folder(runs_dir.parent / TRAINING, f"class-{course.name}").absolute() / classroom.KEYS_NAME
        write_whole(keys, classroom.authorized_keys(seats, path, runs_dir, seed, program))
        told = {"page": room.lead_url, "seats": names, "login": login, "keys": str(keys)}
        if as_json:
            print_json({**told, "fit": carries.fit, "warning": warning})
            sys.stdout.flush()
        else:
            _tell_class(course, told, carries, warning, keyless=not all(seat.key for seat in seats))
        while True:
            busy = [("now", text)] if (text := use.warning()) else []
            room.show({**table.look(), "about": [*about, *busy]})
            time.sleep(_CLASS_EVERY_S)
    on = table.going_on()
    live.say(console(), "the page is closed" + (f"; games in progress: {', '.join(on)}" if on else ""))


def _tell_class(
    course: Course, told: dict[str, Any], carries: classroom.Carries, warning: str, *, keyless: bool
) -> None:
    say_to = console()
    live.say(say_to, f"{course.name}: {course.title}, {len(told['seats'])} seats")
    live.say(say_to, f"machine  {carries.text()}")
    for line in _folded(f"warning: {warning}" if warning else ""):
        live.say(say_to, line)
    live.say(say_to, f"page     {told['page']}")
    live.say(say_to, f"seats    {told['keys']}")
    steps = [
        *(["In that file, replace each placeholder by the public key of the trainee it names."] if keyless else []),
        f"cat {shlex.quote(told['keys'])} >> ~/.ssh/authorized_keys; remove these lines after the class.",
        f"Each trainee types `{told['login']}`; their key opens only their own game.",
    ]
    if told["login"].startswith("ssh root@"):
        steps.insert(0, "Better start this command again from a separate account: games do not need root.")
    for number, step in enumerate(steps, 1):
        live.say(say_to, f"  {number}. {step}")
    live.say(say_to, f"  On this machine, `hashidrill train {course.name} --trainee {told['seats'][0]}` works too.")
    live.say(say_to, "Ctrl-C closes the page; games in progress continue.")


def _campaign(who: str, *, as_json: bool) -> None:
    """The trainee's progress in the shipped campaign, and the next stage."""
    plan = read_campaign(the_campaign(), pages=False)
    where = standing(plan, best(who))
    if as_json:
        print_json(
            {
                "campaign": plan.metadata.name,
                "trainee": who,
                "next": where.next,
                "stages": [
                    {
                        "name": each.stage.name,
                        "open": each.open,
                        "done": each.done,
                        "needed": each.needed,
                        "scenarios": each.stage.scenarios,
                        "passed": list(each.passed),
                    }
                    for each in where.stages
                ],
            }
        )
        return
    for line in told(plan, where).splitlines():
        live.say(console(), line)


def _play(course: Course, started: games.Started, who: str, say_to: Console, *, shell: bool) -> None:
    """Plays from the start of the keeper until the game is over. Raises the keeper's HashidrillError."""
    live.say(say_to, f"{course.name} (level {course.level}, {_minutes(course.limit_s)} from the pager on)")
    while told := started.line():
        if "error" in told:
            raise _as_said(told)
        if "said" in told:
            live.say(say_to, told["said"])
        if "page" in told:
            live.say(say_to, f"page for watchers      {told['page']}")
            live.say(say_to, f"page for the trainer   its address is in {told['trainer']}")
        if "game" in told:
            break
    else:
        raise DatacenterError(f"the game did not start: see {started.log}")
    live.say(say_to, "the datacenter starts, and its users come; you are on call once they are served ...")
    _attend(course, games.find_game(who), say_to, shell=shell)
    started.process.wait()


def _attend(course: Course, game: games.Game, say_to: Console, *, shell: bool) -> None:
    """Plays until the game is over: a quiet look around, the pager, and the repair."""
    with _attended(game):
        with contextlib.suppress(DatacenterError):  # it ended before the pager rang: the card says why
            shown = games.wait_for_state(game, QUIET, PAGED, WATCHED)
            for line in _folded(course.hand_over):
                live.say(say_to, f"  | {line}")
            for line in _folded(shown["busy"]):
                live.say(say_to, line)
            if shown["state"] == QUIET:
                live.say(say_to, "you are on call; all is quiet")
                live.say(say_to, f"look around: nothing breaks for {_minutes(course.quiet_s)}, or until you say")
                live.say(say_to, "`hashidrill say ready`. Then the pager rings once users notice something.")
            if shell and shown["state"] == QUIET:
                _look_around(game, course, say_to)
            else:
                shown = _paged(game, course)
                if shown["pager"] is not None:
                    _page(shown, course, say_to, shell=shell)
                if shell and shown["state"] == PAGED:
                    _in_shells(game, say_to)
        while game.alive:
            time.sleep(_LOOK_S)


def _paged(game: games.Game, course: Course) -> dict[str, Any]:
    return games.wait_for_state(game, PAGED, WATCHED, OVER, within_s=course.quiet_s + _PAGED_WITHIN_S)


def _look_around(game: games.Game, course: Course, say_to: Console) -> None:
    """Opens a shell; the pager's message appears in it, like one that `wall` sends."""
    live.say(say_to, "`help` lists the commands of this shell; `say ready` works too")

    def announce() -> None:
        with contextlib.suppress(DatacenterError):
            shown = _paged(game, course)
            if shown["state"] != PAGED:
                return
            lines = [*_pager_lines(shown, course, shell=True), _AGAIN]  # noqa: S604 - as above
            # the program that runs there may have switched off the terminal's handling of line ends
            text = "\r\n\a" + "".join(f"{plain_line(line)}\r\n" for line in lines)
            os.write(sys.stdout.fileno(), text.encode(sys.stdout.encoding, "replace"))

    pager = threading.Thread(target=announce, name="pager", daemon=True)
    pager.start()
    _in_shells(game, say_to)


def _as_said(told: dict[str, Any]) -> HashidrillError:
    """The keeper's error, with the keeper's exit code."""
    kind = DatacenterError if told.get("exit_code") == DatacenterError.exit_code else UsageError
    return kind(told["error"])


def _page(shown: dict[str, Any], course: Course, say_to: Console, *, shell: bool) -> None:
    for line in _pager_lines(shown, course, shell=shell):
        live.say(say_to, line)


def _pager_lines(shown: dict[str, Any], course: Course, *, shell: bool) -> Iterator[str]:
    pager = shown["pager"]
    yield ""
    yield f"*** PAGER *** from {pager.get('from', '')}: {course.title}"
    yield from (f"    {line}" for line in _folded(str(pager.get("text", ""))))
    yield ""
    yield from _folded(f"hosts: {', '.join(f'{name} {address}' for name, address in shown['hosts'].items())}")
    yield (
        "more shells: `on HOST COMMAND` here, `hashidrill lab shell HOST` in any terminal"
        if shell
        else "a shell: hashidrill lab shell HOST, in any terminal"
    )
    yield "say: hashidrill say detected | diagnosis WORDS | done | hint | give-up | users"
    yield f"you have {_minutes(course.limit_s)}; if you leave a shell, you can open another"


def _folded(text: str) -> list[str]:
    """The text's paragraphs, wrapped to fit the terminal with an indent."""
    width = min(shutil.get_terminal_size().columns, 100) - 4
    return [line for paragraph in text.strip().splitlines() for line in textwrap.wrap(paragraph, width) or [""]]


def _in_shells(game: games.Game, say_to: Console) -> None:
    """The trainee's own shells, one after the other; leaving a shell does not end the game."""
    while True:
        _shell(game, None, [])
        if not _is_on(game):
            return
        live.say(say_to, "the game continues; this terminal waits: Enter opens a shell, Ctrl-C gives up the game")
        if not _enter(game):
            return


def _enter(game: games.Game) -> bool:
    """Waits for a line on this terminal. False once the game is over, or if the terminal is closed."""
    while _is_on(game):
        if select.select([0], [], [], _LOOK_S)[0]:
            return bool(os.read(0, 4096))
    return False


def _is_on(game: games.Game) -> bool:
    return game.alive and _state(game) in {QUIET, PAGED}


def _state(game: games.Game) -> str:
    try:
        return str(games.ask(game, {"op": "state"})["state"])
    except UsageError:
        return OVER


def _shell(game: games.Game, host: str | None, command: list[str]) -> int:
    words = shell_command(game, host, command)
    with _terminal_kept():
        return subprocess.run(words, check=False).returncode


@contextlib.contextmanager
def _terminal_kept() -> Iterator[None]:
    """Restores the terminal afterwards: a shell that ends with its game may leave it in the state of line editing."""
    if not sys.stdin.isatty():
        yield
        return
    kept = termios.tcgetattr(0)
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # to take the terminal back
    try:
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):
            os.tcsetpgrp(0, os.getpgrp())
            termios.tcsetattr(0, termios.TCSADRAIN, kept)
        signal.signal(signal.SIGTTOU, before)


@contextlib.contextmanager
def _attended(game: games.Game) -> Iterator[None]:
    """Ctrl-C gives up the game, whose faults are still reverted, and which is still judged."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(_GIVEN_UP.format(out=game.out))
        try:
            games.ask(game, {"op": "say", "what": "give-up"})
        except UsageError:  # the game is over, or its keeper is too busy to answer
            if game.alive:
                os.kill(game.pid, signal.SIGTERM)
        raise


def _card(out: Path, log: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse((out / games.CARD_NAME).read_bytes())
    except OSError:
        raise DatacenterError(f"the game left no score card: {_last_line(log)}") from None
    return found


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"its log is empty ({log})"


def _minutes(value_s: float) -> str:
    return f"{value_s / 60:g} minutes"
