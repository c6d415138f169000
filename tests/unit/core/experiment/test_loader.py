"""From YAML to an experiment: what is read, what the kinds say of their parameters, and where a mistake is shown."""

import textwrap

import pytest
from pydantic import BaseModel, Field

import places
from hashidrill.core import hypothesis as hypotheses
from hashidrill.core.errors import ExperimentError, UnknownNameError
from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import load_experiment, load_text, resolve
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault
from hashidrill.core.faults.noop import Noop
from hashidrill.core.protocols import registry
from hashidrill.core.units import Duration, Percent, Rate, Size
from hashidrill.products.consul.loads.base import ConsulLoad

SHIPPED = places.ROOT / "experiments"
GOOD = textwrap.dedent("""\
    apiVersion: hashidrill/v1
    kind: Experiment
    metadata:
      name: slow-disk
      title: A slow disk
      why: To see what a slow disk does
    datacenter:
      consul: {servers: 3, clients: 1}
    load:
      kv-writes: {kind: fake.write, rate: 50/s}
    steady_state:
      require: ["kv-writes.latency.p50 < 300ms"]
    method:
      - {fault: fake.slow, on: "consul:leader", with: {delay: 500ms}, for: 20s}
    expect:
      - stays_fast: {load: kv-writes, within: 10s}
    """)


class SlowParams(Strict):
    delay: Duration
    op: str = "fsync"
    share: Percent = Percent("100%")


class WriteParams(Strict):
    rate: Rate
    value: Size = Size("512B")
    via: str = "host:consul-1"


class StaysFastParams(Strict):
    load: str
    within: Duration = Duration("10s")
    fault: str | None = None


def kind_of(name, params):
    return type(name.replace(".", "_"), (), {"kind": name, "Params": params})


def load_of(name, params):
    return type(name.replace(".", "_"), (ConsulLoad,), {"kind": name, "Params": params})


def fault_of(name, params):
    return type(name.replace(".", "_"), (BaseFault,), {"kind": name, "Params": params})


@pytest.fixture(autouse=True)
def kinds(monkeypatch):
    """Kinds of our own, so that this says how the loader treats any kind."""
    faults = [fault_of("fake.slow", SlowParams), Noop]
    loads = {"fake.write": WriteParams, "consul.write": WriteParams}
    kinds = {
        "hashidrill.faults": {fault.kind: fault for fault in faults},
        "hashidrill.loads": {name: load_of(name, params) for name, params in loads.items()},
    }
    monkeypatch.setattr(registry, "_kinds", kinds.__getitem__)  # and none of the built-in ones

    def get(name):
        if name != "stays_fast":
            raise UnknownNameError(f"there is no hypothesis {name!r}: there are: stays_fast")
        found = kind_of(name, StaysFastParams)
        found.sides = ()
        found.never = None
        return found

    monkeypatch.setattr(hypotheses, "getter", lambda _near_to=None: get)


def changed(*pairs):
    text = GOOD
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def refused(*pairs):
    """The message for GOOD with each `old` replaced by `new`."""
    with pytest.raises(ExperimentError) as error:
        load_text(changed(*pairs), "x.yaml")
    return str(error.value)


def method(*steps):
    return (
        '  - {fault: fake.slow, on: "consul:leader", with: {delay: 500ms}, for: 20s}\n',
        "".join(f"  - {step}\n" for step in steps),
    )


def test_a_good_file_becomes_an_experiment(tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text(GOOD)
    experiment = load_experiment(path)
    assert experiment.metadata.name == "slow-disk"
    assert experiment.method[0].for_ == 20
    assert experiment.method[0].with_ == {"delay": "500ms"}
    assert experiment.steady_state.require[0].limit == 0.3
    assert load_experiment(str(path)) == experiment == load_text(GOOD)


def test_resolving_fills_in_the_parameters_of_each_kind(tmp_path, monkeypatch):
    monkeypatch.setattr("hashidrill.core.experiment.loader.hypothesis_sources", lambda *_: {})  # the fake has no file
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    resolved = resolve(path)
    assert resolved.experiment == load_experiment(path)
    assert WriteParams.model_validate(resolved.parameters.loads["kv-writes"]) == WriteParams(rate=Rate("50/s"))
    assert SlowParams.model_validate(resolved.parameters.steps[0]) == SlowParams(delay=Duration("500ms"))
    assert resolved.parameters.expectations[0]["within"] == "10s"


def test_a_mistake_is_shown_with_its_line_and_a_caret_under_it():
    assert refused(("rate: 50/s", "rate: 50")) == textwrap.dedent("""\
        x.yaml:10:39: load.kv-writes.rate: 50 has no unit: a rate is written like 50/s or 10/m
            kv-writes: {kind: fake.write, rate: 50}
                                                ^""")


def test_all_mistakes_of_a_file_are_in_one_message_in_the_order_of_the_file():
    message = refused(
        ("name: slow-disk", "name: Slow"),
        ("servers: 3", "severs: 3"),
        ("rate: 50/s", "rate: 50"),
        ("delay: 500ms", "delay: 500"),
        ("within: 10s", "within: 10"),
    )
    lines = [int(line.split(":")[1]) for line in message.splitlines() if line.startswith("x.yaml:")]
    assert lines == [4, 8, 10, 14, 16]


def test_ten_mistakes_are_shown_and_the_rest_is_counted():
    message = refused(("metadata:\n", "metadata:\n" + "".join(f"  wrong{n}: 1\n" for n in range(25))))
    assert message.count("unknown key") == 10
    assert message.endswith("x.yaml: ... and 15 more")
    assert len(message.splitlines()) <= 40


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # unknown keys, at every depth
        ("delay: 500ms", "delay: 1s, opp: all", "method[0].with: unknown key 'opp': did you mean op?"),
        ("rate: 50/s", "rate: 50/s, vai: 5", "load.kv-writes: unknown key 'vai': did you mean via"),
        ("within: 10s", "withn: 10s", "expect[0].stays_fast: unknown key 'withn': did you mean within"),
        # types are what they are in YAML: nothing is turned into something else
        ("servers: 3", "servers: 3.5", "expected a whole number, got 3.5"),
        ("servers: 3", "servers: 0", "expected at least 1, got 0"),
        ("title: A slow disk", "title: 5", "metadata.title: expected text, got 5"),
        ("title: A slow disk", "title: [a]", "metadata.title: expected text, got a list of 1"),
        ("title: A slow disk", "title:", "x.yaml:5:3: metadata.title: expected text, got nothing"),
        ("with: {delay: 500ms}", "with: slow", "method[0].with: expected a mapping (`key: value`), got 'slow'"),
        ("{load: kv-writes, within: 10s}", "10s", "expected the parameters of stays_fast as a mapping (`key: value`)"),
        # what is missing, and what it would be
        ("delay: 500ms", "op: read", "method[0].with: delay is missing: a duration, like 500ms"),
        ("{load: kv-writes, within: 10s}", "", "expect[0].stays_fast: load is missing"),
        # names that point at something of the experiment
        ("kv-writes.latency.p50 < 300ms", "raft.state == 1", "there is no signal raft.state"),
        # times
        ("require:", "within: 2h\n  require:", "steady_state.within: 2h is too long"),
        ("datacenter:", "recovery: {for: 61m}\ndatacenter:", "recovery.for: 61m is too long"),
        ("datacenter:\n", "datacenter:\n  ready_within: 61m\n", "datacenter.ready_within: 61m is too long"),
    ],
)
def test_a_mistake_says_where_it_is_and_what_would_be_right(old, new, said):
    message = refused((old, new))
    assert said in message.replace("\n    ", " ")
    assert message.count("x.yaml:") == 1, "one mistake, one message"


def step(fault, on, at="0s", lasts="10s", **params):
    with_ = f", with: {{{', '.join(f'{key}: {value}' for key, value in params.items())}}}" if params else ""
    return f'{{fault: {fault}, on: "{on}"{with_}, at: {at}, for: {lasts}}}'


def test_aliases_stand_for_what_they_name():
    again = "  kv-again: {kind: fake.write, rate: *r}\nsteady_state:"
    text = changed(("rate: 50/s", "rate: &r 50/s"), ("steady_state:", again))
    assert load_text(text).load["kv-again"].params["rate"] == "50/s"


@pytest.mark.parametrize("word", ["on", "yes", "no", "off", "2021-10-28", "1_000", "12:30:00"])
def test_yaml_is_read_as_1_2_where_such_words_are_text(word):
    assert load_text(changed(("why: To see what a slow disk does", f"why: {word}"))).metadata.why == word


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("0x1f", 31),
        ("0o17", 15),
        ("-3", -3),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("~", None),
        ('"5"', "5"),
        ("!!str 5", "5"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
        ("|-\n        a\n        b", "a\nb"),
    ],
)
def test_the_agents_configuration_is_passed_on_as_yaml_says(word, value):
    text = changed(("  consul: {servers: 3, clients: 1}", f"  consul:\n    config:\n      key: {word}"))
    assert load_text(text).datacenter.consul.config == {"key": value}


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path):
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_experiment(path) == load_text(GOOD)
    path.write_bytes(path.read_bytes().replace(b"50/s", b"50"))
    with pytest.raises(ExperimentError, match=r"windows\.yaml:10:39: "):
        load_experiment(path)


def test_the_caret_stands_under_the_place_also_after_wide_characters():
    lines = refused(
        ("{kind: fake.write, rate: 50/s}", '{kind: fake.write, "\u9045\u3044": 1, rate: 50/s}')
    ).splitlines()
    assert lines[0].startswith("x.yaml:10:33: load.kv-writes: unknown key '\u9045\u3044'")
    assert lines[1].index('"') == lines[2].index("^")
    lines = refused(
        ("{kind: fake.write, rate: 50/s}", '{kind: fake.write, via: "\u9045\u3044", rate: 50}')
    ).splitlines()
    assert lines[2].index("^") == lines[1].index("50}") + 2, "two wide characters before it"


def test_a_terminal_is_not_told_what_to_do_by_a_file():
    message = refused(("datacenter:", '"\u200f\u2028\u202e": 1\ndatacenter:'))
    assert "unknown key" in message
    assert all(line.isprintable() for line in message.split("\n"))


class Unhelpful(BaseModel):
    """Params that refuse in ways of their own."""

    model_config = {"extra": "forbid"}
    pair: tuple[int, str]
    word: str = Field(pattern="^[abc]+$", default="a")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("pair: [1, b, c]", "method[0].with.pair: expected at most 2 entries, got a list of 3"),
        ("pair: 5", "method[0].with.pair: expected a list, got 5"),
        ("pair: [1, b], word: x", "method[0].with.word: expected text that matches ^[abc]+$, got 'x'"),
    ],
)
def test_what_only_pydantic_can_explain_is_still_one_line_with_a_place(monkeypatch, params, said):
    monkeypatch.setitem(registry._kinds("hashidrill.faults"), "odd", fault_of("odd", Unhelpful))
    message = refused(method(f'{{fault: odd, on: "consul:leader", with: {{{params}}}, for: 1s}}'))
    assert said in message
    assert message.startswith("x.yaml:14:")


def test_hypotheses_are_looked_for_near_the_file(tmp_path, monkeypatch):
    asked = []
    real = hypotheses.getter
    monkeypatch.setattr(hypotheses, "getter", lambda near_to=None: lambda name: asked.append(near_to) or real()(name))
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    monkeypatch.setattr("hashidrill.core.experiment.loader.hypothesis_sources", lambda *_: {})
    resolve(path)
    load_experiment(path)
    assert asked == [path, path]


def test_no_more_entries_are_looked_at_than_a_file_may_have(monkeypatch):
    asked = []
    real = hypotheses.getter
    monkeypatch.setattr(hypotheses, "getter", lambda near_to=None: lambda name: asked.append(name) or real()(name))
    line = "  - stays_fast: {load: kv-writes, within: 10s}\n"
    assert "expect: expected at most 100 entries, got a list of 500" in refused((line, line * 500))
    assert len(asked) == 100


@pytest.mark.long
def test_the_experiments_of_the_library_are_good(monkeypatch):
    monkeypatch.undo()  # the real kinds
    for path in list_experiments(SHIPPED):
        assert resolve(path).experiment == load_experiment(path)
