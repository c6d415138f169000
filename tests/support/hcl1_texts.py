"""Texts in HCL version 1 and its JSON, most of them odd and some of them wrong: what an agent takes is its to say."""

from hypothesis import strategies as st

ODDITIES = {
    "dot_in_key": "telemetry {\n  disable_compat_1.9 = true\n}\n",
    "trailing_comma_in_json": '{"server": false, "odd": [1, 2,],}',
    "keys": '_a-b.c = 1\n"q r" = 2\n\u00e9 = 3\n\u0661a = 4\n',
    "key_in_letters": "\u00e9\u0661 = 3\n",
    "key_is_a_number": "1 = 1\n",
    "key_is_a_literal": "true = 1\n",
    "numbers": "a = 010\nb = 0x1F\nc = -0x1f\nd = 1e3\ne = 1.\nf = .5\ng = -1.5E-2\n",
    "octal_without_octal_digits": "a = 08\n",
    "hexadecimal_without_digits": "a = 0x\n",
    "exponent_without_digits": "a = 1e\n",
    "minus_before_a_point": "a = -.5\n",
    "too_large": "a = 99999999999999999999\n",
    "the_smallest": "a = -9223372036854775808\n",
    "too_large_a_float": "a = 1e999\n",
    "underscores_in_a_number": "a = 1_000\n",
    "a_name_as_value": "a = b\n",
    "null": "a = null\n",
    "commas_between": "a = 1, b = 2,\nc = 3",
    "two_commas": "a = 1,, b = 2\n",
    "nothing_between": 'a = 1 b = "x" c { } d "e" { f = 1 }',
    "brace_on_the_next_line": 'a\n{\n}\nb "c"\n\n{\n}\n',
    "value_on_the_next_line": "a =\n1\n",
    "value_missing": "a =",
    "value_missing_in_a_block": "a { b = }",
    "value_missing_before_two_braces": "a { b = } }",
    "colon": "a: 1\n",
    "label_and_equals": 'a "b" = {}\n',
    "labels": 'a "b" c "d" {\n}\n',
    "list": "a = [,1,,2,]\n",
    "list_without_commas": "a = [1 2]\n",
    "lists_without_commas": "a = [[1] [2]]\n",
    "blocks_in_objects_in_lists": "a = [{ b { c { } } }]\n",
    "duplicates": "a = 1\na = 2\n",
    "blocks_again": "a { b = 1 }\na { b = 2 }\n",
    "comments": "# a\n// b\n/* c\n*/ a = /* d */ 1 # e\n/**/",
    "comment_of_one_slash": "/ a\n",
    "comment_that_is_not_closed": "a = 1 /*/",
    "strings": 'a = "\\a\\b\\f\\n\\r\\t\\v\\\\\\"\\101\\x41\\u00e9\\U0001F600\t"\n',
    "slash_escaped": 'a = "\\/"\n',
    "quote_escaped": 'a = "\\\'"\n',
    "octal_of_two": 'a = "\\18"\n',
    "surrogate": 'a = "\\ud83d"\n',
    "octal_over_a_byte": 'a = "\\400"\n',
    "string_over_lines": 'a = "b\nc"\n',
    "quotes_in_interpolation": 'a = "${b["c"]} {d} $${e} %{f"\n',
    "line_end_in_interpolation": 'a = "${b\n}"\n',
    "interpolation_that_does_not_end": 'a = "${b"\n',
    "single_quotes": "a = 'b'\n",
    "heredoc": "a = <<EOF\n ${b\n  EOF\n",
    "heredoc_indented": "a = <<-EOF\n  b\n    c\n  EOF\nd = 1\n",
    "heredoc_with_less_indent": "a = <<-EOF\n b\n  EOF\n",
    "heredoc_indented_that_ends_without_indent": "a = <<-EOF\nb\nEOF\n",
    "heredoc_at_the_end_of_the_file": "a = <<EOF\nb\nEOF",
    "heredoc_with_a_longer_line": "a = <<EOF\nEOF b\nEOF\n",
    "heredoc_with_a_point": "a = <<E.F\nb\nE.F\n",
    "heredoc_without_a_name": "a = <<\nb\n",
    "line_ends_of_windows": "a = <<EOF\r\nb\r\nEOF\r\nc {\r\n}\r\n",
    "byte_order_mark": "\ufeffa = 1\n",
    "no_break_space": "a\u00a0= 1\n",
    "nothing": "",
    "comment_alone": "# a",
    "brace_that_closes_nothing": "a = 1\n}\n",
    "block_that_does_not_end": "a {\n",
    "expression": "a = 1 + 1\n",
    "call": 'a = file("b")\n',
    "template_of_a_template": "a = [[ .b ]]\n",
    "json": '{"a": 1, "b": [1, "c", 1.5e3], "d": {"e": null}}',
    "json_after_a_line": '\n\t{"a": 1}\n',
    "json_with_comments": '{\n  // a\n  "a": 1\n}',
    "json_with_a_hash": '{\n  # a\n  "a": 1\n}',
    "json_with_duplicates": '{"a": 1, "a": 2}',
    "json_with_blocks_again": '{"a": {"b": 1}, "a": {"c": 1}}',
    "json_with_more_after_it": '{"a": 1} x',
    "json_that_does_not_end": '{"a": 1',
    "json_without_a_comma": '{"a": 1 "b": 2}',
    "json_without_a_value": '{"a": }',
    "json_with_lists_in_lists": '{"a": [[1], [2]]}',
    "json_with_true_in_a_list": '{"a": [true]}',
    "json_with_null_in_a_list": '{"a": [null]}',
    "json_with_a_zero": '{"a": 01}',
    "json_with_nan": '{"a": NaN}',
    "json_with_a_slash": '{"a": "\\/"}',
    "json_with_a_pair_of_surrogates": '{"a": "\\ud83d\\ude00"}',
    "json_with_single_quotes": "{'a': 1}",
    "json_with_a_bare_key": "{a: 1}",
    "json_with_interpolation": '{"a": "${b"}',
    "json_with_a_byte_order_mark": '\ufeff{"a": 1}',
    "json_list": "[1]",
    "json_null": "null",
}
"""Each text by what is odd in it. The names at their top belong to no agent, so that only the grammar counts."""

_KEYS = st.sampled_from(["a", "b-c", "d.e", "_f", "\u00e9", '"q r"', '"\\u00e9"'])
_SPACE = st.sampled_from(["", " ", "\n", "\t", "\r\n", " # c\n", " // c\n", "/* c */"])
_VALUES = st.sampled_from(
    [
        "1",
        "-7",
        "017",
        "0x1f",
        "1.5",
        "1e3",
        ".5",
        "true",
        '"s"',
        '"\\x41"',
        '"${a "b"}"',
        '"${a\n}"',
        '"}"',
        "<<E\nx\nE\n",
        "<<-E\n  x\n  E\n",
        "[]",
        "{}",
        "08",
        "null",
        "x",
        '"\\/"',
        '"${"',
        "<<E\nx\nE",
        "'s'",
    ]
)
_RARELY = st.integers(0, 24).map(lambda number: number == 0)


@st.composite
def hcl(draw, depth=0):
    """Attributes and blocks, each name once, so that no value meets another of its name and of another type."""
    parts = []
    for key in draw(st.lists(_KEYS, max_size=4, unique=True)):
        labels = " ".join(draw(st.lists(_KEYS, max_size=2)))
        if depth < 3 and draw(st.booleans()):
            opened = draw(st.sampled_from(["", "= "])) if not labels else ""
            text = f"{key} {labels} {opened}{{{draw(_SPACE)}{draw(hcl(depth + 1))}{draw(_SPACE)}}}"
        else:
            text = f"{key} ={draw(_SPACE)}{draw(_values(depth))}"
        parts.append(draw(_SPACE) + text + draw(st.sampled_from(["\n", "\n", ",", " , ", " "])))
    return _damaged(draw, "".join(parts))


@st.composite
def _values(draw, depth):
    if depth > 2 or draw(st.booleans()):
        return draw(_VALUES)
    comma = draw(st.sampled_from([", ", ",", ",\n"]))
    items = comma.join(draw(st.lists(_VALUES, max_size=3)))
    return f"[{items}{draw(st.sampled_from(['', ',']))}]"


@st.composite
def json(draw, depth=0):
    """An object."""
    members = []
    for key in draw(st.lists(st.sampled_from("abcd"), max_size=3, unique=True)):
        plain = st.sampled_from(["1", "-1.5e2", '"s"', '"\\u00e9"', '"\\/"', "true", "null", "[]", "01", "'s'", "[1,]"])
        value = draw(plain) if depth > 2 or draw(st.booleans()) else draw(json(depth + 1))
        members.append(f'{draw(_JSON_SPACE)}"{key}":{draw(_JSON_SPACE)}{value}')
    return _damaged(draw, f"{{{','.join(members)}{draw(st.sampled_from(['', '', '', ',']))}}}")


_JSON_SPACE = st.sampled_from(["", " ", "\n", "\r\n", "\t"])


def _damaged(draw, text):
    """Rarely, one character less."""
    if text and draw(_RARELY):
        at = draw(st.integers(0, len(text) - 1))
        return text[:at] + text[at + 1 :]
    return text
