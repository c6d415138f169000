"""validate: checks experiments and other files. Imports the kinds that the experiments name, but not the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hashidrill.core.engine.requirements import check_memory, lacking_memory
from hashidrill.core.errors import ExperimentError, HashidrillError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import FOLDER as EXPERIMENTS
from hashidrill.core.experiment.library import SUFFIXES, find_experiment, list_experiments, read_experiment
from hashidrill.core.experiment.loader import check_base, load_document, resolve
from hashidrill.core.experiment.model import Experiment, services_of
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.protocols import registry
from hashidrill.core.util.folders import PLAYBOOKS, find_playbook, located
from hashidrill.faces.cli.common import Json, examples, print_json, print_line, print_text

_RUNBOOK = ".md"
"""Runbooks are Markdown."""


def register(app: typer.Typer) -> None:
    calls = (
        "validate",
        "validate experiments/raft/*.yaml",
        "validate playbooks/first-game-day.yaml",
        "validate playbooks/runbook-slow-leader.md",
    )
    app.command(epilog=examples(*calls))(validate)


def validate(
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="EXPERIMENT", help="Names or paths (default: the whole library).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check experiments and other files without running anything.

    Exits with 2 if one has an error. Checks game days, runbooks, scenarios, and files of `kind: Base` and `kind:
    Attach` too.
    """
    paths = [_found(name) for name in experiments] if experiments else list_experiments()
    results = list[dict[str, Any]]()
    for path in paths:
        warnings = list[str]()
        results.append({"experiment": str(path), "error": _error_of(path, warnings.append), "warnings": warnings})
        if not as_json and results[-1]["error"] is None:
            print_line(f"ok  {path}")
        elif not as_json:
            print_text(f"{results[-1]['error']}\n", stderr=True)
        if not as_json:
            print_text("".join(f"warning: {each}\n" for each in warnings), stderr=True)
    if as_json:
        print_json(results)
    if any(result["error"] for result in results):
        raise typer.Exit(ExperimentError.exit_code)


def _check_variants(path: Path) -> None:
    """Checks each variant beyond the checks of its file. Raises ExperimentError, and UsageError for an unknown
    figure.
    """
    from hashidrill.core.compare.figures import check_figures  # noqa: PLC0415 - numpy, which few experiments need here
    from hashidrill.core.experiment.loader import variants_of  # noqa: PLC0415 - as above

    resolved = resolve(path)
    variants = variants_of(resolved)
    for each in variants.values():
        if each.document is not None:
            check_memory(each.document, each.experiment)
    check_figures(resolved, variants)


def _check_binaries(experiment: Experiment, path: Path) -> None:
    """Raises ExperimentError for a binary that hashidrill cannot get: another package's product may name one."""
    from hashidrill.lab.provision.products import PRODUCTS  # noqa: PLC0415 - files about existing datacenters do not need it

    for service in services_of(experiment.datacenter):
        for wanted in service.binaries():
            if wanted.name not in PRODUCTS:
                raise ExperimentError(
                    f"{path}: datacenter.{service.name}: hashidrill cannot get its binary {wanted.name!r}; it gets"
                    f" {', '.join(PRODUCTS)}. Leave it out of `binaries`, and let `agent` begin with its path"
                )


def _warn_of_probes(document: Document, experiment: Experiment, warn: Callable[[str], None]) -> None:
    """A run in the local datacenter refuses these probes; a run with `--attach` may reach what they read."""
    from hashidrill.lab.runs.launch import note_probes  # noqa: PLC0415 - few experiments have probes

    note_probes(document, experiment)
    if document.problems:
        warn(f"{document.message()}\n`hashidrill run` refuses this unless it is given `--attach FILE`")


def check_day(document: Document, path: Path) -> None:
    """Checks a game day and every experiment that it names. Reports texts of the plan that reveal a run's fault. Raises
    ExperimentError.
    """
    from hashidrill.gamedays.gameday.plan import note_giveaways, plan_of  # noqa: PLC0415 - few files are game days

    plan = plan_of(document, folder=path.parent)
    for run in plan.runs:
        _fits(path, run.name, run.resolved)
    note_giveaways(document, plan)


def check_scenario(document: Document, path: Path) -> None:
    """Checks a scenario, and the experiment of each of its truths. Raises ExperimentError."""
    from hashidrill.gamedays.training.course import course_of, each_choice  # noqa: PLC0415 - few files are scenarios
    from hashidrill.gamedays.training.scenario import scenario_of  # noqa: PLC0415 - as above

    written = scenario_of(document, path)
    for choice in each_choice(written):
        _fits(path, f"the truth {choice.truth}", course_of(written, choice).resolved)


def check_campaign(_document: Document, path: Path) -> None:
    """Checks a campaign, its scenarios and the pages that it names. Raises ExperimentError."""
    from hashidrill.gamedays.training.campaign import read_campaign  # noqa: PLC0415 - few files are campaigns

    read_campaign(path)


def _check_runbook(path: Path) -> None:
    """Checks a runbook and every experiment that it names. Raises ExperimentError, UsageError."""
    from hashidrill.gamedays.runbooks.parser import read_runbook  # noqa: PLC0415 - few files are runbooks
    from hashidrill.gamedays.runbooks.rehearsal import courses_of  # noqa: PLC0415 - as above

    for course in courses_of(read_runbook(path), [], []):
        _fits(path, course.resolved.experiment.metadata.name, course.resolved)


def _fits(path: Path, name: str, resolved: ResolvedExperiment) -> None:
    """Raises ExperimentError if this machine lacks the memory for the disks of an experiment that the file names."""
    if trouble := lacking_memory(resolved.experiment):
        raise ExperimentError(f"{path}: {name}: {trouble}")


def _check_attach(path: Path) -> None:
    """Checks what the file says about an existing datacenter, offline. Raises what check_attach_file raises."""
    from hashidrill.staging.runs.attach_limits import check_attach_file  # noqa: PLC0415 - httpx2, which experiments do not need

    check_attach_file(path)


def check_attach_document(_document: Document, path: Path) -> None:
    """Checks a file of `kind: Attach`. Raises what check_attach_file raises."""
    _check_attach(path)


def check_base_document(document: Document, path: Path) -> None:
    """Checks a file of `kind: Base`, which experiments extend. Raises ExperimentError."""
    check_base(document, near_to=path)


def _found(name: str) -> Path:
    asked = Path(name)
    if asked.suffix == _RUNBOOK:
        return find_playbook(asked, [_RUNBOOK])
    return located(asked, EXPERIMENTS, SUFFIXES) or located(asked, PLAYBOOKS, SUFFIXES) or find_experiment(name)


def _error_of(path: Path, warn: Callable[[str], None] = lambda _: None) -> str | None:
    try:
        if path.suffix == _RUNBOOK:
            _check_runbook(path)
            return None
        document = read_experiment(path)
        kind = document.data.get("kind") if isinstance(document.data, dict) else None
        if isinstance(kind, str) and kind in registry.entries(registry.DOCUMENTS):
            registry.plugin(registry.DOCUMENTS, kind)(document, path)
            if document.problems:
                warn(document.message())
            return None
        experiment = load_document(document, near_to=path)
        if experiment.datacenter.stands:
            _check_attach(path)
        else:
            check_memory(document, experiment)
            _check_binaries(experiment, path)
            if experiment.probes:
                _warn_of_probes(document, experiment, warn)
        if experiment.variants:
            _check_variants(path)
    except HashidrillError as error:
        return str(error)
    return None
