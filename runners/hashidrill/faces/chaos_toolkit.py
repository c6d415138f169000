"""What Chaos Toolkit calls by `provider: {type: python, module: hashidrill.faces.chaos_toolkit}`.

An action (`run`), a probe (`verdict`) and a control, for the Python environment of Chaos Toolkit. Chaos Toolkit goes on
after a failed action, and still exits with 0. So the verdict is a probe of the hypothesis, and the control corrects the
journal if no hypothesis used the probe. `chaos run` exits with 0 only after a PASS.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hashidrill.core.util.safe_json import parse

_VERDICTS = ("PASS", "FAIL", "INVALID")
_RESULTS: list[dict[str, Any]] = []
"""The results of the runs of this Chaos Toolkit experiment, in order."""


class NoPassError(Exception):
    """The verdict is not PASS. Chaos Toolkit reports the activity as failed, with this reason."""


def run(experiment: str, attach: str = "", program: Sequence[str] = ()) -> dict[str, Any]:
    """Action: runs one experiment, and returns what `hashidrill run --json` prints about it.

    `attach`: a file of `kind: Attach`. `program`: the command line of another hashidrill. Raises NoPassError unless the
    verdict is PASS.
    """
    if not isinstance(experiment, str) or not experiment.strip():
        raise NoPassError("experiment: name one; without a name hashidrill would run all of them")
    own = [sys.executable, "-c", "from hashidrill.faces.cli import main; main()"]
    options = ["--attach", attach] if attach else []
    result: dict[str, Any] = {"asked": experiment, "experiment": "", "verdict": None, "reason": "it did not end"}
    _RESULTS.append(result)
    result |= _result(*_called([*(program or own), "run", "--json", "--plain", *options, "--", experiment]))
    if result["verdict"] != "PASS":
        raise NoPassError(_reason(result))
    return result


def verdict(experiment: str) -> str:
    """Probe, with `tolerance: PASS`: the worst verdict of the runs of that experiment: FAIL, else INVALID, else PASS.

    Raises NoPassError if the verdict is neither PASS nor FAIL, or if the experiment did not run.
    """
    results = [one for one in _RESULTS if experiment in (one.get("asked"), one["experiment"])]
    if any(one["verdict"] == "FAIL" for one in results):
        return "FAIL"
    if not results:
        raise NoPassError(
            f"{experiment}: no action ran this experiment, so it has no verdict; use the hypothesis strategy "
            f"after-method-only"
        )
    for one in results:
        if one["verdict"] != "PASS":
            raise NoPassError(_reason(one))
    return "PASS"


def configure_control() -> None:
    """Control: called when a Chaos Toolkit experiment begins; drops the results of an earlier one."""
    _RESULTS.clear()


def after_experiment_control(context: Any, state: dict[str, Any]) -> None:  # noqa: ARG001 - this is how it is called
    """Control: writes all results, with the proofs of their faults, to `hashidrill` in the journal.

    With a FAIL, the journal says `deviated`. With any other result than PASS, or without a result, it says `failed`.
    """
    state["hashidrill"] = [*_RESULTS]
    if any(one["verdict"] == "FAIL" for one in _RESULTS):
        state["deviated"] = True
    elif state["status"] == "completed" and {one["verdict"] for one in _RESULTS} != {"PASS"}:
        state["status"] = "failed"


def _called(command: Sequence[str]) -> tuple[int, str]:
    """(exit code, standard output). hashidrill's standard error, with its progress, goes to Chaos Toolkit's.

    An interrupt of Chaos Toolkit also interrupts hashidrill, and waits until it has reverted its faults.
    """
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise NoPassError(f"{command[0]} cannot be run: {error.strerror}") from None
    try:
        printed, _ = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process.returncode, printed


def _result(code: int, printed: str) -> dict[str, Any]:
    """The result of the run. Has a verdict only if there is exactly one result and the exit code matches it."""
    try:
        [found] = parse(printed)
        agrees = found["verdict"] in _VERDICTS and (code == 0) == (found["verdict"] == "PASS")
    except (ValueError, TypeError, KeyError):
        return {"exit_code": code, "reason": "it printed no result; the reason is on standard error"}
    reason = "" if agrees else f"its verdict is {found['verdict']}, but its exit code is {code}"
    return {**found, "verdict": found["verdict"] if agrees else None, "exit_code": code, "reason": reason}


def _reason(result: Mapping[str, Any]) -> str:
    broken = [one for one in result.get("expectations") or [] if one["finding"] not in {"held", "known"}]
    reasons = [
        result.get("reason"),
        *(result.get("invalid") or []),
        *(f"{one['title']}: {one['text']}" for one in broken),
    ]
    ended = result["verdict"] or f"no verdict (exit code {result.get('exit_code')})"
    return "\n".join([f"{result['asked']}: {ended}", *(str(one) for one in reasons if one)])
