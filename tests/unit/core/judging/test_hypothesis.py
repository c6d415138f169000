"""The decorator, and how hypotheses are found.
What hypotheses of users import stays where it was, wherever the code behind it moves.
The percentile that verdicts go by, taken thousands of times a judgement, is the one that NumPy documents.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

import hashidrill.core.recording
from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError, UnknownNameError, UsageError
from hashidrill.core.hypothesis import Broken, Held, files, require
from hashidrill.core.judging import measure
from hashidrill.core.recording import reader
from hashidrill.core.units import Duration

SHIPPED = {
    "available_during",
    "green_but_sick",
    "latency_stays",
    "leader_elected",
    "leadership_leaves",
    "leadership_stays",
    "no_acknowledged_write_lost",
    "reads_recover",
    "writes_recover",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's project with a `hypotheses/` folder; `write` puts a file into it."""
    (tmp_path / "hypotheses").mkdir()
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path)

    def write(name, body):
        text = (
            "from hashidrill.core.hypothesis import hypothesis, require\nfrom hashidrill.core.units import Duration\n"
            + body
        )
        (tmp_path / "hypotheses" / name).write_text(text)
        return tmp_path / "hypotheses" / name

    return write


class TestDecorator:
    def test_makes_a_model_of_the_keyword_only_parameters(self):
        found = hypothesis.get("writes_recover")
        params = found.Params.model_validate({"load": "kv-writes", "within": "10s"})
        assert params.within == Duration("10s")
        assert params.p50_below == Duration("300ms")

    @pytest.mark.parametrize(
        ("params", "wrong"),
        [
            ({"load": "x"}, "within"),
            ({"load": "x", "within": 10}, "has no unit"),
            ({"load": "x", "within": "10s", "p50_under": "1s"}, "Extra inputs"),
        ],
    )
    def test_parameters_that_do_not_fit_are_refused(self, params, wrong):
        with pytest.raises(ValidationError, match=wrong):
            hypothesis.get("writes_recover").Params.model_validate(params)

    def test_a_function_stays_callable(self):
        @hypothesis.hypothesis
        def twice(recording, *, factor: int = 2) -> Held:
            return Held("fine", value=recording * factor)

        assert twice(3).figures == {"value": 6.0}

    def test_defaults_written_as_text_are_read_like_yaml(self, folder):
        folder(
            "mine.py", '@hypothesis\ndef quick(recording, *, within: Duration = "2s"):\n    return str(within * 2)\n'
        )
        assert hypothesis.get("quick", near_to=Path()).check(None, {}).text == "4.0"

    def test_future_annotations_work_and_that_of_the_recording_need_not_exist(self, folder):
        path = folder("mine.py", "@hypothesis\ndef late(recording: Nowhere, *, within: Duration): ...\n")
        path.write_text("from __future__ import annotations\n" + path.read_text())
        assert hypothesis.get("late", near_to=Path()).check(None, {"within": "1s"}).text == "held"

    @pytest.mark.parametrize(
        ("signature", "message"),
        [
            ("def bad(recording, load: str): ...", "parameter 'load' must be keyword-only"),
            ("def bad(recording, *, load): ...", "parameter 'load' has no type"),
            ("def bad(*, load: str): ...", "the first parameter is the recording"),
            ("def bad(): ...", "the first parameter is the recording"),
            ("def bad(recording, **rest: str): ...", "parameter 'rest' must be keyword-only"),
            ("def bad(recording, *, load: 'Nowhere'): ...", "the type of 'load', Nowhere, is not known at run time"),
            ("def bad(recording, *, load: hypothesis.__class__.__call__): ...", "cannot be read from YAML"),
        ],
    )
    def test_a_signature_that_yaml_could_not_fill_is_an_error_with_its_place(self, folder, signature, message):
        path = folder("mine.py", f"@hypothesis\n{signature}\n")
        with pytest.raises(UsageError) as error:
            hypothesis.all_hypotheses(near_to=Path())
        assert f"{path}:3: hypothesis bad: " in str(error.value)
        assert message in str(error.value)


class TestCheck:
    def test_require_raises_its_text_and_plain_figures(self):
        with pytest.raises(Broken) as broken:
            require(
                False, "too slow", p50_s=np.float64(0.5), count=np.int64(3), none=math.nan, far=math.inf, keys=["a"]
            )
        assert broken.value.text == "too slow"
        assert broken.value.figures == {
            "p50_s": 0.5,
            "count": 3.0,
            "none": "not measured",
            "far": "never",
            "keys": ["a"],
        }

    def test_a_plain_assert_with_a_message_shows_the_message(self, folder):
        folder("mine.py", '@hypothesis\ndef plain(recording):\n    assert 1 > 2, "one is not more than two"\n')
        with pytest.raises(Broken, match=r"^one is not more than two$"):
            hypothesis.get("plain", near_to=Path()).check(None, {})

    def test_a_bare_assert_shows_its_source_and_the_values_in_it(self, folder):
        path = folder(
            "mine.py", "@hypothesis\ndef bare(recording):\n    p50 = 0.5\n    limit = 0.3\n    assert p50 < limit\n"
        )
        with pytest.raises(Broken) as broken:
            hypothesis.get("bare", near_to=Path()).check(None, {})
        assert broken.value.text == f"assert p50 < limit ({path}:7)\np50 = 0.5\nlimit = 0.3"

    def test_a_crash_is_invalid_and_names_its_line(self, folder):
        path = folder("mine.py", "@hypothesis\ndef crash(recording):\n    return 1 / 0\n")
        with pytest.raises(HypothesisInvalidError) as error:
            hypothesis.get("crash", near_to=Path()).check(None, {})
        assert str(error.value) == f"hypothesis crash crashed: ZeroDivisionError: division by zero ({path}:5)"

    def test_what_it_returns_is_the_evidence(self, folder):
        folder("mine.py", '@hypothesis\ndef said(recording):\n    return "all is well"\n')
        assert hypothesis.get("said", near_to=Path()).check(None, {}).text == "all is well"


class TestLookUp:
    def test_the_shipped_ones_are_all_there_and_documented(self):
        found = hypothesis.all_hypotheses()
        assert set(found) >= SHIPPED
        assert all(len(found[name].doc) > 80 for name in SHIPPED)

    def test_an_unknown_name_lists_the_near_ones(self):
        with pytest.raises(UnknownNameError, match=r"no hypothesis 'writes_recovers': did you mean writes_recover"):
            hypothesis.get("writes_recovers")

    def test_a_users_own_are_found_from_the_experiment_and_the_shipped_ones_remain(self, folder, tmp_path, monkeypatch):
        folder("mine.py", "@hypothesis\ndef own(recording): ...\n")
        assert "own" not in hypothesis.all_hypotheses()
        monkeypatch.chdir("/")
        assert "own" not in hypothesis.all_hypotheses(near_to=Path())
        found = hypothesis.all_hypotheses(near_to=tmp_path / "experiments" / "raft" / "x.yaml")
        assert {"own", "writes_recover"} <= set(found)

    def test_a_users_own_wins_over_a_shipped_one(self, folder):
        path = folder("mine.py", "@hypothesis\ndef writes_recover(recording): ...\n")
        assert hypothesis.get("writes_recover", near_to=Path()).path == path

    def test_nothing_above_the_repository_is_looked_at(self, folder, tmp_path, monkeypatch):
        folder("mine.py", "@hypothesis\ndef own(recording): ...\n")
        (tmp_path / "other" / ".git").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "other")
        assert "own" not in hypothesis.all_hypotheses(near_to=Path())

    def test_the_environment_names_another_folder_of_shipped_ones(self, tmp_path, monkeypatch):
        (tmp_path / "mine.py").write_text(
            "from hashidrill.core.hypothesis import hypothesis\n@hypothesis\ndef only(recording): ...\n"
        )
        monkeypatch.setenv("HASHIDRILL_HYPOTHESES", str(tmp_path))
        monkeypatch.chdir("/")
        assert set(hypothesis.all_hypotheses()) == {"only"}

    def test_a_changed_file_is_read_again(self, folder):
        folder("mine.py", "@hypothesis\ndef first(recording): ...\n")
        assert "first" in hypothesis.all_hypotheses(near_to=Path())
        folder("mine.py", "@hypothesis\ndef another(recording): ...\n")
        assert "another" in hypothesis.all_hypotheses(near_to=Path())
        assert "first" not in hypothesis.all_hypotheses(near_to=Path())

    def test_two_of_one_name_in_one_folder_are_an_error(self, folder):
        folder("a.py", "@hypothesis\ndef same(recording): ...\n")
        folder("b.py", "@hypothesis\ndef same(recording): ...\n")
        with pytest.raises(UsageError, match=r"b\.py:3: hypothesis 'same' is already in .*a\.py:3"):
            hypothesis.all_hypotheses(near_to=Path())

    def test_files_that_are_not_ours_are_not_run(self, tmp_path, monkeypatch):
        (tmp_path / "hypotheses").mkdir()
        (tmp_path / "hypotheses" / "science.py").write_text("raise SystemExit('not for you')\n")
        monkeypatch.chdir(tmp_path)
        assert set(hypothesis.all_hypotheses(near_to=Path())) >= SHIPPED

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("def broken(:\n", ":3: not Python: "),
            ("import nowhere_to_be_found\n", ":3: cannot be imported: ModuleNotFoundError: No module named"),
            ("\n1 / 0\n", ":4: cannot be imported: ZeroDivisionError"),
        ],
    )
    def test_a_file_that_does_not_import_is_an_error_with_file_and_line(self, folder, body, message):
        path = folder("mine.py", body)
        with pytest.raises(UsageError) as error:
            hypothesis.all_hypotheses(near_to=Path())
        assert str(error.value).startswith(f"{path}{message}")

    def test_an_imported_hypothesis_belongs_to_where_it_comes_from(self, folder, tmp_path, monkeypatch):
        (tmp_path / "helper_module_for_this.py").write_text(
            "from hashidrill.core.hypothesis import hypothesis\n@hypothesis\ndef imported(recording): ...\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        folder("mine.py", "from helper_module_for_this import imported\n")
        assert "imported" not in hypothesis.all_hypotheses(near_to=Path())


OWN = """\
from hashidrill import Broken, Duration, FaultWindow, Held, HypothesisInvalidError, Operations, Percent, Rate
from hashidrill import Recording, Series, hypothesis, measure, require

@hypothesis(timed=False)
def own(recording: Recording, *, load: str, within: Duration = Duration("1s")) -> Held:
    operations: Operations = recording.operations(load)
    return Held(f"{len(operations)} {measure.__name__}")
"""


def test_a_hypothesis_of_a_user_that_imports_all_that_is_public_is_found():
    [own] = files.from_source("own.py", OWN.encode())
    assert (own.name, own.timed, sorted(own.Params.model_fields)) == ("own", False, ["load", "within"])


@pytest.mark.parametrize("name", hashidrill.core.recording.__all__)
def test_what_recording_hands_out_is_the_readers(name):
    assert getattr(hashidrill.core.recording, name) is getattr(reader, name)


def test_what_a_hypothesis_may_ask_for_is_in_its_module():
    assert all(hasattr(hypothesis, name) for name in hypothesis.__all__)
    assert {"get", "all_hypotheses", "Broken", "Held", "hypothesis", "require"} <= set(hypothesis.__all__)
    assert measure.seconds(3.0) == "3s"


LATENCIES = st.lists(st.sampled_from([0.0, 0.01, 0.3, 2.0, math.inf]) | st.floats(0, 100), min_size=1, max_size=60)
PERCENT = st.sampled_from([0, 50, 90, 99, 99.9, 100]) | st.floats(0, 100)


@given(LATENCIES, PERCENT)
@example([0.1, 0.2, 0.3], 100 / 3)
def test_it_is_one_that_was_measured_and_the_same_as_numpys(latencies, percent):
    found = measure.percentile(np.array(latencies), percent)

    assert found in latencies
    assert found == np.percentile(np.array(latencies), percent, method="inverted_cdf")


@pytest.mark.parametrize("latencies", [[], [math.nan], [0.1, math.nan, 0.3]])
def test_what_was_not_measured_has_none(latencies):
    assert math.isnan(measure.percentile(np.array(latencies), 50))
