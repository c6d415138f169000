"""The decorator, and how hypotheses are found."""

import math
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError, UnknownNameError, UsageError
from hashidrill.core.hypothesis import Broken, Held, require
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
