"""Quantities: what they parse to, how they print, and what they say to a user who got one wrong."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from hashidrill.core.units import Bandwidth, Duration, Percent, Quantity, Rate, Size, shown


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Duration, "500ms", 0.5),
        (Duration, "250us", 0.00025),
        (Duration, "1.5s", 1.5),
        (Duration, "2m", 120),
        (Duration, "1h", 3600),
        (Duration, " 10 s ", 10),
        (Rate, "50/s", 50),
        (Rate, "30/m", 0.5),
        (Rate, "3600/h", 1),
        (Size, "512B", 512),
        (Size, "4kB", 4000),
        (Size, "4KB", 4000),
        (Size, "64KiB", 65536),
        (Size, "1GiB", 2**30),
        (Bandwidth, "64kB/s", 64000),
        (Bandwidth, "1MiB/s", 2**20),
        (Percent, "0.1%", 0.001),
        (Percent, "100%", 1),
    ],
)
def test_a_quantity_is_its_number_in_the_base_unit(kind, text, value):
    assert kind(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Duration, "10", "'10' has no unit: a duration is written like 500ms or 10s"),
        (Duration, "-5s", "'-5s' is negative"),
        (Duration, "5 seconds", "is not a duration; write it like 500ms"),
        (Duration, "", "'' is not a duration"),
        (Duration, "1s2s", "is not a duration"),
        (Duration, "\u0661s", "is not a duration"),
        (Duration, "9" * 400 + "s", "is not a duration"),
        (Rate, "50", "a rate is written like 50/s or 10/m"),
        (Rate, "50/d", "is not a rate"),
        (Size, "10mb", "is not a size; write it like 512B"),
        (Bandwidth, "1MB", "is not a bandwidth; write it like 64kB/s"),
        (Percent, "0.5", "a percentage is written like 0.1%"),
        (Percent, "101%", "'101%' is over 100%"),
    ],
)
def test_a_wrong_quantity_says_what_would_be_right(kind, text, said):
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        kind(text)
    assert len(str(error.value)) < 160


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Duration("90s"), "90s"),
        (Duration("120s"), "2m"),
        (Duration("7200s"), "2h"),
        (Duration("0s"), "0s"),
        (Duration("1500ms"), "1.5s"),
        (Duration("0.25ms"), "250us"),
        (Rate("50/s"), "50/s"),
        (Rate("30/m"), "30/m"),
        (Size("65536B"), "64KiB"),
        (Size("64000B"), "64kB"),
        (Bandwidth("64000B/s"), "64kB/s"),
        (Percent("0.1%"), "0.1%"),
    ],
)
def test_a_quantity_prints_as_a_person_would_write_it(value, text):
    assert str(value) == text


@given(
    st.sampled_from([(Duration, ("ms", "s", "m", "h")), (Rate, ("/s", "/m", "/h")), (Size, ("B", "kB", "MiB", "GB"))]),
    st.integers(min_value=1, max_value=100_000),
    st.integers(min_value=0, max_value=3),
)
def test_what_is_printed_parses_to_the_same_quantity(kind_and_units, number, unit):
    kind, units = kind_and_units
    value = kind(f"{number}{units[unit % len(units)]}")
    assert kind(str(value)) == pytest.approx(value, rel=1e-5)


class Thing(BaseModel):
    within: Duration
    size: Size = Size("1B")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (10, "10 has no unit"),
        (0.5, "0.5 has no unit"),
        (-3, "-3 is negative"),
        (True, "True is not a duration"),
        (None, "None is not a duration"),
        ([], "[] is not a duration"),
    ],
)
def test_in_a_model_a_bare_number_is_refused(raw, said):
    with pytest.raises(ValidationError) as error:
        Thing.model_validate({"within": raw})
    assert said in str(error.value)


def test_in_a_model_text_becomes_the_quantity_and_is_text_again_in_json():
    thing = Thing.model_validate({"within": "90s", "size": "4kB"})
    assert isinstance(thing.within, Duration)
    assert thing.model_dump_json() == '{"within":"90s","size":"4kB"}'
    assert Thing.model_validate_json(thing.model_dump_json()) == thing


def test_the_schema_of_a_quantity_is_text_with_the_pattern_and_examples_of_its_unit():
    schema = Thing.model_json_schema()["properties"]["within"]
    assert schema["type"] == "string"
    assert "?P<" not in schema["pattern"]
    assert schema["examples"] == ["500ms", "10s", "2m"]


@pytest.mark.parametrize("value", ["x" * 10_000, ["y" * 500] * 50, {"k": "z" * 9999}, 10**900])
def test_what_a_user_wrote_is_quoted_on_one_short_line(value):
    assert len(shown(value)) < 450
    assert "\n" not in shown(value)


def test_every_unit_shows_its_own_examples_as_right():
    for kind in Quantity.__subclasses__():
        for example in kind._examples:
            assert kind(example) > 0
            assert example in kind.how()
