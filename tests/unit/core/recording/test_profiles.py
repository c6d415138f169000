"""Reading Go's profiles, and the difference of two."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os

import pytest

from go_profiles import HEALTHY, OTHER, SICK, STREAM, encoded, profiled
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.recording import profiles
from hashidrill.core.recording.profiles import difference, grown, profile_of, read_profile, short_name, taken
from hashidrill.core.recording.seal import damage

RECORDED = base64.b64decode(
    "H4sIAAAAAAAE/3yQz2sTXxTFv/P7zaRtbvOt8AhCpwPCs2AmealJ+hfowoWoULAUTSaTcXCSFyZJ1d2AGxcuCqXoomBRwUURqgtd"
    "qeDShRtxZRexigjBjeiqi5F5ky6E2s0d5p1zP+fee1lGAohXBYN/LUAC/vHmgWgpSID3EgjzGSSAhCVTJq8kC5CIHz/aSmQRRiKX"
    "RVCwYqrknWhlkYR3v7wQLRlJoIAwbyAJNKyZiCg5DaghCWICkfHOx7UEIsNI5xAZdKybBvmmW4AUvPuEj6DAXiorkMEZ0yCfE1nF"
    "O7efJ90qfFB5twoTeMKcJG9VC5CGv8bPElmDtVTWYApPmZPkbiIj/H2Tywjup/shyOKsOUnWJSuLdHxnjy+gjxfQATCYiMgWIAP/"
    "ureeoA14mC5vwDSeNmWyIeQyIBiarKga0o2zT7c/bb/e/Pkb53NIgCiKRBxFL0WSK/5fE/IzSIRoazTcGM7iaDgabgxnyUw+jySI"
    "omg/juM4FnC0Fe3HcRzHAjlG/6O6x0I26PsdlyoOG3T6dCocdPp+2y14rFsPr9M5e9AL7YA59cD2mN0LHTtMHXY3ZE7BY9To+223"
    "cDFw3S49ws5dHqPZdt3vFHhpDTpOiU7b/XY3obVs/uoxaoVpRsFjYTrf+ZC1/MBd8vvXztUbbtCjlj3ohYdP1u6GrJVwyAGnm7xc"
    "OYI2N3ba3Fm4Efp990I6xDiakn8H8qa0JrHHD4GdOdiEmn+rZH4ccLKwlKReYlTnd0gKnRib078T/FQeO9UY+EGzXCsWq9USrZTs"
    "RrFYst2bLr8gJaVqbbFUrzSd6mLRqVVOF5sLC7WG4zq0uVBvlSu1csMtlZsVqi6vNntshRrLq71bPaceBCt/AgAA//+x1J3pvQMA"
    "AA=="
)
"""What go1.26's `pprof.Lookup("goroutine").WriteTo(file, 0)` wrote of a program with 50 goroutines in time.Sleep."""


def test_a_profile_that_go_wrote_is_read():
    found = read_profile(RECORDED)
    assert (found.samples, found.unit, found.duration_ns) == (51, "goroutines", 0)
    assert found.stacks["main.main.func1", "time.Sleep", "runtime.gopark"] == [50]
    assert found.of({"time.Sleep"}) == 50


def test_times_are_of_each_second_and_stacks_count_once():
    recursive = {("main", "walk", "walk"): 150}
    found = read_profile(encoded(recursive))
    assert found.unit == "cores"
    assert found.of({"walk"}) == found.total == pytest.approx(0.5)
    longer = read_profile(encoded({stack: 2 * n for stack, n in recursive.items()}, length_s=6))
    assert [each.grew for each in difference(longer, found)] == pytest.approx([0, 0])


def test_the_difference_of_two_names_what_grew_and_what_shrank():
    sick, healthy = read_profile(encoded({STREAM: 200})), read_profile(encoded(HEALTHY))
    changes = {short_name(each.function): each for each in difference(sick, healthy)}
    assert changes["stream.(*Subscription).Next"].grew == pytest.approx(0.66)
    assert changes["stream.(*Subscription).Next"].grew_self == 0
    assert changes["runtime.selectgo"].grew_self == pytest.approx(0.66)
    assert changes["json.Marshal"].grew == pytest.approx(-0.0667, abs=1e-3)
    assert "encoding/json.Marshal" not in {each.function for each in grown(sick, healthy, 9)}


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("github.com/hashicorp/consul/agent/consul/stream.(*Subscription).Next", "stream.(*Subscription).Next"),
        ("go.etcd.io/bbolt.(*freelist).write", "bbolt.(*freelist).write"),
        ("slices.SortFunc[go.shape.[]github.com/x/y.Z]", "slices.SortFunc[go.shape.[]y.Z]"),
        ("main.main", "main.main"),
    ],
)
def test_short_names_leave_out_the_path(name, short):
    assert short_name(name) == short


@pytest.mark.lie
def test_whatever_is_torn_or_too_much_is_refused(monkeypatch):
    """Every prefix of a profile, any byte of it changed, gzip bombs and endless stacks: a ValueError or a profile."""
    plain = gzip.decompress(encoded(SICK))
    for end in range(len(plain)):
        for torn in (plain[:end], plain[:end] + b"\xff" + plain[end + 1 :]):
            with contextlib.suppress(ValueError):
                read_profile(torn)
    with pytest.raises(ValueError, match="unpacks to more than"):
        read_profile(gzip.compress(bytes(profiles._MOST_UNPACKED + 1)))
    with pytest.raises(ValueError, match="larger than"):
        read_profile(os.urandom(profiles.MOST_BYTES + 1))
    monkeypatch.setattr(profiles, "_MOST_FRAMES", 3)
    with pytest.raises(ValueError, match="more than 3 functions"):
        read_profile(encoded({STREAM: 1, OTHER: 1}))


@pytest.mark.lie
def test_a_file_out_of_the_recording_is_not_read(tmp_path):
    (tmp_path / "mine").write_bytes(encoded(SICK))
    recording = profiled(tmp_path / "run").build()
    one = taken(recording)[0]
    link = recording.path / "artifacts/profiles/link.pb.gz"
    link.symlink_to(tmp_path / "mine")
    for file in ("../mine", str(tmp_path / "mine"), str(link.relative_to(recording.path))):
        with pytest.raises(HypothesisInvalidError, match="leads out"):
            profile_of(recording, one._replace(file=file))


@pytest.mark.lie
def test_a_profile_that_was_changed_after_the_run_damages_the_recording(tmp_path):
    recording = profiled(tmp_path / "run").build()
    assert damage(recording) == []
    (recording.path / taken(recording)[1].file).write_bytes(encoded(HEALTHY, at=15))
    assert "has changed since the run" in damage(recording)[0]
