"""Campaigns, and each trainee's finished games: one per line, in the trainee's file in the state directory."""

import datetime as dt
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import SUFFIXES, read_document
from hashidrill.core.experiment.model import MOST_ENTRIES, Name
from hashidrill.core.experiment.pydantic_messages import validated_kind
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Duration
from hashidrill.core.util.files import append_line, private_folder
from hashidrill.core.util.folders import find_playbook
from hashidrill.core.util.safe_json import parse
from hashidrill.gamedays.training.card import PASSED, Card
from hashidrill.gamedays.training.games import games_dir
from hashidrill.gamedays.training.scenario import FOLDER, list_scenarios, read_scenario

_RANKS = ("not counted", "failed", "partly", "passed")


@dataclass(frozen=True)
class Played:
    """One finished game of a trainee."""

    scenario: str
    seed: int
    result: str
    points: int
    at: str

    @property
    def rank(self) -> tuple[int, int]:
        return (_RANKS.index(self.result) if self.result in _RANKS else -1, self.points)


def file_of(trainee: str) -> Path:
    return games_dir() / "progress" / f"{trainee}.jsonl"


def remember_result(card: Card) -> None:
    """Appends the game to the trainee's list of played games. Raises OSError."""
    path = file_of(card.trainee)
    private_folder(path.parent)
    line = {
        "scenario": card.scenario,
        "seed": card.seed,
        "result": card.result,
        "points": card.points,
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        append_line(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


def played(trainee: str) -> list[Played]:
    """All games of that person, oldest first; invalid lines are left out."""
    try:
        lines = file_of(trainee).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(Played(**parse(line)))
        except (ValueError, TypeError):
            continue
    return found


def best(trainee: str) -> dict[str, Played]:
    """The best game of each scenario."""
    found: dict[str, Played] = {}
    for game in played(trainee):
        if game.scenario not in found or game.rank > found[game.scenario].rank:
            found[game.scenario] = game
    return found


KIND = "Campaign"
Text = Annotated[str, StringConstraints(min_length=1, max_length=2000, strip_whitespace=True)]


class Metadata(Strict):
    """The campaign's name and purpose."""

    name: Name = Field(description="Name of the campaign")
    title: Text = Field(description="One line for lists")
    why: str = Field(default="", max_length=2000, description="What a trainee can do afterwards")


class Stage(Strict):
    """A part of the campaign, in which its scenarios can be played in any order."""

    name: Name = Field(description="Name of the stage")
    title: Text = Field(description="One line: what it is about")
    about: Text = Field(description="What the trainee reads before it")
    read: list[str] = Field(default=[], max_length=MOST_ENTRIES, description="Pages that help, below playbooks/")
    scenarios: Annotated[list[Name], Field(min_length=1, max_length=MOST_ENTRIES)] = Field(
        description="The scenarios' names, in the order of play"
    )
    needed: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="How many must be passed before the next stage opens; default: all"
    )
    takes: Duration = Field(description="About how long the stage takes, with pauses")


class Campaign(Strict):
    """Scenarios in stages, from the first one to the last."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion", description="Version of this format")
    kind: Literal["Campaign"] = Field(description="Kind of document")
    metadata: Metadata
    stages: Annotated[list[Stage], Field(min_length=1, max_length=20)]


@dataclass(frozen=True)
class StageStanding:
    """A trainee's progress in one stage."""

    stage: Stage
    open: bool
    passed: tuple[str, ...]

    @property
    def needed(self) -> int:
        return self.stage.needed or len(self.stage.scenarios)

    @property
    def done(self) -> bool:
        return self.open and len(self.passed) >= self.needed


@dataclass(frozen=True)
class Standing:
    """A trainee's progress, and the next scenario: None once every stage is done."""

    stages: tuple[StageStanding, ...]
    next: str | None


def the_campaign() -> Path:
    """The file of the campaign that `hashidrill train` follows: the user's own, or the shipped one.

    Raises UsageError if there is none.
    """
    return find_playbook(Path(f"{FOLDER}.yaml"), SUFFIXES)


def read_campaign(path: Path, *, pages: bool = True) -> Campaign:
    """Reads a campaign and its scenarios. Raises ExperimentError, whose message gives the place of each problem.

    Without `pages`, the pages of the reading list need not exist: the package does
    not contain them.
    """
    document = read_document(path)
    campaign = validated_kind(document, Campaign, KIND, "a campaign")
    _check(document, campaign, path.parent if pages else None)
    document.raise_problems()
    return campaign


def _check(document: Document, campaign: Campaign, folder: Path | None) -> None:
    known = {each.stem: each for each in list_scenarios()}
    seen: set[str] = set()
    for at, stage in enumerate(campaign.stages):
        for number, name in enumerate(stage.scenarios):
            place = ("stages", at, "scenarios", number)
            if name in seen:
                document.problem(place, f"{name} is in the campaign already")
            elif name not in known:
                document.problem(place, f"there is no scenario {name!r}: {near(name, known)}")
            else:
                read_scenario(known[name])
            seen.add(name)
        if stage.needed is not None and stage.needed > len(stage.scenarios):
            document.problem(("stages", at, "needed"), f"the stage has only {len(stage.scenarios)} scenarios")
        for number, page in enumerate(stage.read):
            if folder is not None and not (folder / page).is_file():
                document.problem(("stages", at, "read", number), f"there is no {page} next to this file")


def standing(campaign: Campaign, best: Mapping[str, Played]) -> Standing:
    """The progress of the trainee with these best games."""
    stages: list[StageStanding] = []
    opened = True
    for stage in campaign.stages:
        passed = tuple(name for name in stage.scenarios if name in best and best[name].result == PASSED)
        stages.append(StageStanding(stage, opened, passed))
        opened = stages[-1].done
    return Standing(tuple(stages), _next(stages))


def _next(stages: list[StageStanding]) -> str | None:
    for each in stages:
        if each.open and not each.done:
            return next(name for name in each.stage.scenarios if name not in each.passed)
    return None


def told(campaign: Campaign, where: Standing) -> str:
    """For a terminal: every stage, its passed scenarios, and the next one."""
    lines = [campaign.metadata.title, ""]
    for number, each in enumerate(where.stages, 1):
        state = "done" if each.done else f"{len(each.passed)} of {each.needed}" if each.open else "not open yet"
        lines.append(f"{number}. {each.stage.title} ({each.stage.takes}): {state}")
        lines += [f"     {'passed' if name in each.passed else '-':<8}{name}" for name in each.stage.scenarios]
    lines += ["", "all stages are done" if where.next is None else f"next: hashidrill train {where.next}"]
    return "\n".join(lines)
