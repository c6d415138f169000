"""Sections that are written once: both renderers say the same, leave out what is empty, and escape their texts."""

from hashidrill.reports.document import Badge, Bullets, Code, Section, Table, to_html, to_markdown

HOSTILE = "<b>|*x*"
PAGE = [
    Section("Empty", ["", Bullets([]), Table(("a",), [])]),
    Section(
        "Full",
        [
            (Badge("PASS", "held"), "a title", Code("runs/1", "runs/1/report.html")),
            Bullets([HOSTILE], title="To discuss"),
            Table(("who", "what"), [(HOSTILE, Badge("no", "broken"))], numbers_from=1),
        ],
    ),
]


def test_markdown():
    assert to_markdown(PAGE) == [
        "## Full",
        "PASS a title `runs/1`",
        "### To discuss\n\n- &lt;b&gt;\\|\\*x\\*",
        "| who | what |\n| --- | ---: |\n| &lt;b&gt;\\|\\*x\\* | no |",
    ]


def test_html():
    [section] = to_html(PAGE)
    assert '<span class="badge held">PASS</span> a title <a href="runs/1/report.html">runs/1</a>' in section
    assert "<h3>To discuss</h3><ul><li>&lt;b&gt;|*x*</li></ul>" in section
    assert '<td class="number" data-of="what"><div><span class="badge broken">no</span></div></td>' in section
    assert "<b>" not in section
