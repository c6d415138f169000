"""The Hypothesis class: a decorated plain function, the parameters that YAML may set, and its result."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError

from hashidrill.core.errors import HypothesisInvalidError, UsageError
from hashidrill.core.units import Duration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from hashidrill.core.experiment.model import Experiment

Figures = dict[str, float | str | list[str]]
Never = Callable[[Any, Any], Iterable[tuple[str, str]]]
Function = TypeVar("Function", bound=Callable[..., Any])
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ATTRIBUTE = "__hashidrill_hypothesis__"


Look = tuple[str, str | None, int, int]


class Broken(AssertionError):  # noqa: N818 - it is a finding, not a mistake
    """A hypothesis that did not hold: `text` for a person, `figures` the numbers behind it.

    `witnesses` are looks that each prove the break alone, as (signal, host or None for all, start and end in ns).
    While one of them is valid, the finding counts, whatever else in the run is in doubt.
    """

    def __init__(self, text: str, witnesses: Sequence[Look] = (), /, **figures: Any) -> None:
        super().__init__(text)
        self.text = text
        self.witnesses = tuple(witnesses)
        self.figures = plain(figures)


class Held:
    """The result of a hypothesis that held: `text` says what was measured."""

    def __init__(self, text: str, /, **figures: Any) -> None:
        self.text = text
        self.figures = plain(figures)


def require(condition: object, text: str, witnesses: Sequence[Look] = (), /, **figures: Any) -> None:
    """Raises Broken(text, witnesses, figures) unless `condition`."""
    if not condition:
        raise Broken(text, witnesses, **figures)


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis by its name. `Params` is the pydantic model of its YAML parameters.

    `needs_valid_run` is False if its result counts in an INVALID run too: a lost acknowledged write is lost, whether
    or not the fault was proven. `timed` is False if it does not depend on times: a late generator does not change
    what was written.
    """

    name: str
    function: Callable[..., Any]
    Params: type[BaseModel]
    doc: str
    path: Path
    line: int
    needs_valid_run: bool = True
    timed: bool = True
    sides: tuple[str, ...] = ()
    """The names of the sides, for a hypothesis that compares. YAML names a variant for each."""
    of_rounds: bool = False
    """Whether each side of a comparison receives the recordings of all rounds, not of one."""
    never: Never | None = None
    """Called with parameters and an experiment; yields (parameter, text): why it could never be judged there."""

    def check(self, recording: Any, params: Mapping[str, Any]) -> Held:
        """Judges a hashidrill.core.recording.Recording (a comparison: a tuple of its sides). Returns what held, with
        its figures.

        Raises Broken, HypothesisInvalidError (nothing to check, or the hypothesis itself crashed: the message then
        has file and line), or pydantic's ValidationError for parameters that do not fit.
        """
        model = self.Params.model_validate(dict(params))
        arguments = {name: getattr(model, name) for name in type(model).model_fields if name not in self.sides}
        try:
            result = self.function(*(recording if self.sides else (recording,)), **arguments)
        except (Broken, HypothesisInvalidError):
            raise
        except AssertionError as failure:
            raise Broken(_assertion_text(failure)) from None
        except Exception as crash:
            raise HypothesisInvalidError(f"hypothesis {self.name} crashed: {_crash_text(crash)}") from crash
        return result if isinstance(result, Held) else Held(str(result or "held"))


@overload
def hypothesis(function: Function) -> Function: ...
@overload
def hypothesis(
    *, needs_valid_run: bool = True, timed: bool = True, never: Never | None = None
) -> Callable[[Function], Function]: ...
def hypothesis(
    function: Function | None = None, *, needs_valid_run: bool = True, timed: bool = True, never: Never | None = None
) -> Function | Callable[[Function], Function]:
    """Makes a plain function a hypothesis of the same name; it can still be called as before.

    `never(params, experiment)` says before the run why it could not be judged.

    Raises UsageError, with file and line, for a signature that YAML could not fill.
    """

    def mark(marked: Function) -> Function:
        setattr(marked, _ATTRIBUTE, _from_function(marked, needs_valid_run=needs_valid_run, timed=timed, never=never))
        return marked

    return mark if function is None else mark(function)


@overload
def comparison(function: Function) -> Function: ...
@overload
def comparison(*, rounds: bool = False, never: Never | None = None) -> Callable[[Function], Function]: ...
def comparison(
    function: Function | None = None, *, rounds: bool = False, never: Never | None = None
) -> Function | Callable[[Function], Function]:
    """Makes a function of two or more recordings a comparison hypothesis of the same name, for `compare:`.

        @comparison
        def starts_sooner(fast, slow, *, by: Duration): ...

        compare: [{starts_sooner: {fast: variant-a, slow: variant-b, by: 2s}}]

    Each parameter before the `*` is a side: YAML names a variant for it, and the function gets the recording of that
    variant, once for each round. With `rounds`, the function gets a list of recordings for each side: one for each
    round that counts on every side, in the same order. `never` is as for a hypothesis.

    Raises UsageError, with file and line, for a signature that YAML could not fill.
    """

    def mark(marked: Function) -> Function:
        setattr(marked, _ATTRIBUTE, _from_function(marked, compares=True, of_rounds=rounds, never=never))
        return marked

    return mark if function is None else mark(function)


def marked_in(namespace: Mapping[str, Any]) -> list[Hypothesis]:
    """The hypotheses that a module defines itself, without imported ones."""
    found = [getattr(value, _ATTRIBUTE, None) for value in namespace.values() if inspect.isfunction(value)]
    return [h for h in found if isinstance(h, Hypothesis) and h.function.__module__ == namespace.get("__name__")]


def plain(figures: Mapping[str, Any]) -> Figures:
    """Figures as JSON can hold them: numpy numbers become floats, booleans yes or no, NaN `not measured`."""
    return {name: _plain(value) for name, value in figures.items()}


def _plain(value: Any) -> float | str | list[str]:
    import numpy as np  # noqa: PLC0415 - it takes a tenth of a second, and looking for parameters does not need it

    if isinstance(value, (list, tuple, set)):
        return [str(each) for each in value]
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, str) or value is None:
        return str(value)
    if not isinstance(value, (int, float, np.number)):
        return str(value)
    number = float(value)
    return number if np.isfinite(number) else {"nan": "not measured", "inf": "never", "-inf": "-never"}[str(number)]


def _from_function(
    function: Callable[..., Any],
    *,
    needs_valid_run: bool = True,
    timed: bool = True,
    compares: bool = False,
    of_rounds: bool = False,
    never: Never | None = None,
) -> Hypothesis:
    name = function.__name__
    path, line = Path(function.__code__.co_filename), function.__code__.co_firstlineno
    where = f"{path}:{line}: hypothesis {name}"
    sides = _sides(function, where) if compares else ()
    fields: dict[str, Any] = {side: (str, Field(description="The variant of this side")) for side in sides}
    fields |= _fields(function, where, first=len(sides) or 1)
    try:
        config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
        model: type[BaseModel] = create_model(f"{name}_params", __config__=config, **fields)
    except (PydanticUserError, TypeError, NameError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{where}: a parameter cannot be read from YAML: {reason}") from None
    return Hypothesis(
        name,
        function,
        model,
        inspect.getdoc(function) or "",
        path,
        line,
        needs_valid_run,
        timed,
        sides,
        of_rounds,
        never,
    )


def _sides(function: Callable[..., Any], where: str) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    sides = tuple(each.name for each in parameters if each.kind in _POSITIONAL)
    if len(sides) < 2:
        raise UsageError(
            f"{where}: a comparison has a recording for each side before its `*`; write it like"
            f" `def {function.__name__}(candidate, baseline, *, ...)`"
        )
    return sides


def _fields(function: Callable[..., Any], where: str, *, first: int = 1) -> dict[str, Any]:
    """The (type, default) of each keyword-only parameter, for pydantic. `first` is the number of recordings."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise UsageError(
            f"{where}: the first parameter is the recording; write it like `def {function.__name__}(recording, *, ...)`"
        )
    fields: dict[str, Any] = {}
    for parameter in parameters[first:]:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            raise UsageError(f"{where}: parameter {parameter.name!r} must be keyword-only: put a `*` before it")
        if parameter.annotation is parameter.empty:
            raise UsageError(
                f"{where}: parameter {parameter.name!r} has no type; write one, like `{parameter.name}: Duration`"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (_annotation(function, parameter, where), default)
    return fields


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter, where: str) -> Any:
    """The type behind an annotation, also under `from __future__ import annotations`.

    Evaluates only the parameters of YAML: the type of `recording` may be imported for type checking alone.
    """
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return eval(parameter.annotation, function.__globals__)  # noqa: S307 - the user's own module, already imported
    except Exception as error:  # noqa: BLE001 - whatever the annotation does
        raise UsageError(
            f"{where}: the type of {parameter.name!r}, {parameter.annotation}, is not known at run time ({error});"
            " import it outside `if TYPE_CHECKING:`"
        ) from None


def _last_frame(error: BaseException) -> TracebackType | None:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame


def _crash_text(crash: BaseException) -> str:
    frame = _last_frame(crash)
    where = f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})" if frame else ""
    return f"{type(crash).__name__}: {crash}{where}"


def _assertion_text(failure: AssertionError) -> str:
    """The assertion's own message, or, for a bare `assert a < b`, its source and the values of the names in it."""
    if str(failure):
        return str(failure)
    frame = _last_frame(failure)
    if frame is None:
        return "an assertion failed"
    code, line = frame.tb_frame.f_code, frame.tb_lineno
    source = linecache.getline(code.co_filename, line).strip()
    values = [
        f"{name} = {value}"
        for name in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", source))
        if isinstance(value := frame.tb_frame.f_locals.get(name), (int, float, str))
    ]
    return "\n".join([f"{source or 'an assertion failed'} ({code.co_filename}:{line})", *values])


Since = Literal["end", "start"]


def needs_fault(params: Any, experiment: Experiment) -> Iterator[tuple[str, str]]:
    """For `@hypothesis(never=needs_fault)`: a method of marks alone breaks nothing, and each run of it is INVALID.

    A mark counts only if the parameter `fault` names it.
    """
    if getattr(params, "fault", None) or _spans(experiment, None):
        return
    key, more = ("fault", ", or name a mark here") if hasattr(params, "fault") else ("load", "")
    yield key, f"no step of the method has a fault, so there is nothing to judge: add one{more}"


def room(
    key: str = "within", *, since: Since = "end", until: Literal["loads", "fault"] = "loads", window: bool = True
) -> Never:
    """For `@hypothesis(never=room())`: the time in the parameter `key` must end before the loads stop.

    The time starts at the end of the last step that `fault` names (of all faults if it is not set), or at the start of
    the first one; the hypothesis's parameter `since`, if it has one, decides. The length of a parameter `window` is
    added, because the window is measured after that time, unless `window=False`. With `until="fault"` the longest such
    step itself must last for that time.
    """

    def never(params: Any, experiment: Experiment) -> Iterator[tuple[str, str]]:
        if hasattr(params, "fault"):
            yield from needs_fault(params, experiment)
        wanted = getattr(params, key)
        named = _spans(experiment, getattr(params, "fault", None))
        if wanted is None or not named:
            return
        wanted = float(wanted) + (float(getattr(params, "window", 0.0)) if window else 0.0)
        if until == "fault":
            lasts = max(end - start for start, end in named)
            if lasts < wanted:
                yield key, f"the fault lasts {Duration(lasts)}, less than {Duration(wanted)}; make its `for` longer"
            return
        ends = getattr(params, "since", since) == "end"
        began = max(end for _, end in named) if ends else min(start for start, _ in named)
        left = max(step.at + step.for_ for step in experiment.method) + experiment.recovery.for_ - began
        if left < wanted:
            edge = "end" if ends else "start"
            text = f"the loads stop {Duration(left)} after the {edge} of the fault, before {Duration(wanted)} are over"
            yield key, f"{text}; make `recovery` longer"

    return never


def _spans(experiment: Experiment, name: str | None) -> list[tuple[float, float]]:
    picked = [
        step
        for step in experiment.method
        if (hasattr(step, "fault") if not name else name in {step.name, getattr(step, "fault", None)})
    ]
    return [(float(step.at), float(step.at + step.for_)) for step in picked]
