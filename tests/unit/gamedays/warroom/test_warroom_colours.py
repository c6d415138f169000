"""Contrast of the page's colours, computed from its style sheet: WCAG 2.2, level AA, in light and in dark."""

import re
from importlib.resources import files

import pytest

CSS = "".join(
    files(f"hashidrill.{room}").joinpath("assets", name).read_text()
    for room, name in (("reports", "page.css"), ("gamedays.warroom", "warroom.css"))
)
SCHEMES = ("light", "dark")
TONES = ("good", "bad", "odd", "note")
TEXT, GRAPHIC = 4.5, 3.0
"""What 1.4.3 asks of text, and 1.4.11 of lines and borders that carry meaning."""


def colours(css, scheme):
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    return found | (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark)) if scheme == "dark" else {})


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def text_on_backgrounds(css):
    """(colour, background) of each rule that sets a colour of text: on its own background, else on page and card."""
    pairs = set()
    for body in re.findall(r"[^{}]+\{([^{}]*)\}", css):
        said = dict(re.findall(r"(?<![\w-])(color|background): var\(--([\w-]+)", body))
        if "color" not in said:
            continue
        for background in [said["background"]] if "background" in said else ["page", "card"]:
            pairs.add((said["color"], background))
    return pairs


def meant(pairs):
    """`tone` and `soft` are those of each tone."""
    for colour, background in sorted(pairs):
        for tone in TONES:
            pair = (
                colour.replace("tone", tone),
                f"{tone}-soft" if background == "soft" else background.replace("tone", tone),
            )
            yield pair


def too_faint(css, scheme):
    found = colours(css, scheme)
    pairs = set(meant(text_on_backgrounds(css))) | {
        (name, f"{tone}-soft") for tone in TONES for name in ("ink", "quiet")
    }
    lines = {(name, "page") for name in (*(f"s{n}" for n in range(8)), "bad", "fault", "note", "quiet", "good", "odd")}
    faint = [(one, other, TEXT) for one, other in sorted(pairs) if contrast(found[one], found[other]) < TEXT]
    return faint + [(one, other, GRAPHIC) for one, other in lines if contrast(found[one], found[other]) < GRAPHIC]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_and_curves_stand_out_from_what_is_behind_them(scheme):
    assert too_faint(CSS, scheme) == []


def test_the_pairs_are_those_of_the_style_sheet():
    pairs = text_on_backgrounds(CSS)
    assert {("ink", "page"), ("quiet", "card"), ("on-bad", "bad"), ("note", "note-soft"), ("tone", "soft")} <= pairs


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("name", "faint"), [("quiet", "#8a949f"), ("s1", "#888888"), ("on-bad", "#d08080")])
def test_a_colour_that_is_too_faint_is_seen(scheme, name, faint):
    """Planted: a grey half way between both backgrounds is seen in one scheme at least as text, as a curve by 3:1."""
    pale = {"light": "#c9ced4", "dark": "#3a4149"}[scheme] if name != "on-bad" else faint
    assert too_faint(re.sub(rf"--{name}: #[0-9a-f]{{6}};", f"--{name}: {pale};", CSS), scheme)


def test_contrast_is_what_wcag_says_it_is():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.01)


def test_nothing_moves_for_who_asked_for_less_motion():
    """Every transition and animation is inside the query that allows it."""
    allowed = re.search(r"@media \(prefers-reduced-motion: no-preference\) \{.*?\n\}", CSS, re.DOTALL)[0]
    assert not re.search(r"(transition|animation|scroll-behavior)\s*:", CSS.replace(allowed, ""))


def test_the_dark_scheme_has_every_colour_of_the_light_one():
    dark = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[1]
    assert set(re.findall(r"--([\w-]+):", dark)) == set(
        re.findall(r"--([\w-]+):", re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[0])
    )
