"""The engine's own guards on a fix's text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuselint.finding import Edit
from fuselint.rulebook import NoFix
from fuselint.source.edit import apply
from fuselint.source.edit import guard as whole_guard

guard = whole_guard

TEXT = """import mlx.core as mx


def f(x, w):
    # keep me
    y = x * w  # why
    if y:
        z = y + 1
    else:
        z = y
    return z


def g(x):
    return x  # noqa: E501
"""


def verdict(old: str, new: str, *named: str, text: str = TEXT) -> str:
    """Why replacing one text by another is refused, where the statements `named` may change; "" if it isn't."""
    start = text.index(old)
    edits = (Edit(start, start + len(old), new),)
    spans = [(text.index(n), text.index(n) + len(n)) for n in named]
    found = guard(text, apply(text, edits), edits, spans)
    return "" if found is None else found.reason


@pytest.fixture(params=["alone", "between others"], autouse=True)
def around(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test twice: what else a file holds makes no difference."""
    if request.param == "alone":
        return

    def between(text: str, new_text: str, edits: Sequence[Edit], spans: Sequence[tuple[int, int]]) -> NoFix | None:
        at = len(BEFORE)
        moved = [Edit(e.start + at, e.end + at, e.text) for e in edits]
        return whole_guard(
            BEFORE + text + AFTER, BEFORE + new_text + AFTER, moved, [(a + at, b + at) for a, b in spans]
        )

    monkeypatch.setitem(globals(), "guard", between)


BEFORE = "import os; import sys\n\n\n@decorated(\n    os\n)\nclass A:\n    x = 1  # one\n\n\n# two\n"
AFTER = "\n\n\ndef last(x):\n    return bias_of(x)  # three\n\n\nlast(1); last(2)\n"


def test_names_of_the_rest_of_a_file_are_known() -> None:
    text, spans = BEFORE + TEXT + AFTER, [(len(BEFORE) + TEXT.index("y = x"), len(BEFORE) + TEXT.index("  # why"))]
    for name, said in (("last", ""), ("A", ""), ("os", ""), ("bias_of", ""), ("nobody", "nobody")):
        edits = (Edit(text.index("x * w"), text.index("x * w") + 5, f"{name}(x)"),)
        found = whole_guard(text, apply(text, edits), edits, spans)
        assert (found.reason if found else "").endswith(said) and bool(found) == bool(said)


def test_a_part_that_goes_takes_its_names_along() -> None:
    text = "import a\n\n\ndef g(x):\n    return x\n\n\ndef f(x):\n    return a.b(x)\n"
    gone = (text.index("def g"), text.index("def f"))
    edits = (Edit(*gone, ""), Edit(text.index("a.b"), text.index("a.b") + 3, "g"))
    found = whole_guard(text, apply(text, edits), edits, [gone, (text.index("return a"), len(text) - 1)])
    assert found is not None and found.reason.endswith("isn't there: g")


def test_a_named_statement_may_change() -> None:
    assert verdict("x * w", "mx.fast.g(x, w)", "y = x * w") == ""


def test_a_named_statement_may_go() -> None:
    assert verdict("    y = x * w  # why\n", "    # why\n", "y = x * w") == ""


def test_a_header_may_change_alone() -> None:
    assert verdict("y:\n", "mx.any(y):\n", "if y:") == ""
    assert "doesn't name" in verdict("y:\n        z = y + 1", "mx.any(y):\n        z = y + 2", "if y:")


@pytest.mark.parametrize(
    ("old", "new", "named", "why"),
    [
        ("x * w", "mx.fast.g(x, w)", (), "doesn't name"),
        ("x * w", "mx.fast.g(x, w)", ("return z",), "doesn't name"),
        ("    # keep me\n", "", (), "a comment would be lost: # keep me"),
        ("x * w  # why", "x", ("y = x * w",), "a comment would be lost: # why"),
        ("x * w", "mx.fast.g(x, bias)", ("y = x * w",), "bias"),
        ("x * w", "mx.fast.g(x, w", ("y = x * w",), "parse"),
        ("x * w", "x\n    print(x)", ("y = x * w",), ""),
        ("        z = y + 1\n", "", ("z = y + 1",), "parse"),
        ("    if y:\n        z = y + 1\n    else:\n        z = y\n", "    z = y\n", ("z = y + 1",), "doesn't name"),
        ("def g(x):", "def h(x):", (), "doesn't name"),
    ],
)
def test_what_is_refused(old: str, new: str, named: tuple[str, ...], why: str) -> None:
    found = verdict(old, new, *named)
    assert (why in found and found != "") if why else found == ""


def test_a_comment_to_a_tool_may_go() -> None:
    assert verdict("return x  # noqa: E501", "return mx.abs(x)", "return x") == ""


def test_edits_that_touch_are_refused() -> None:
    edits = (Edit(0, 3, "imp"), Edit(3, 6, "ort"))
    found = guard(TEXT, apply(TEXT, edits), edits, [])
    assert found is not None and "touch" in found.reason


def test_a_statement_that_moves_into_another_suite_is_seen() -> None:
    """The deletion of a header would indent what follows it."""
    text = "import a\n\n\ndef f(x):\n    if x:\n        y = 1\n    z = 2\n"
    start = text.index("    if x:\n        y = 1\n")
    edits = (Edit(start, start + len("    if x:\n        y = 1\n"), "    if x:\n"),)
    changed = apply(text, edits).replace("    z = 2", "        z = 2")
    assert guard(text, changed, edits, [(start, start + 20)]) is not None


def test_text_beyond_ascii_and_other_line_endings() -> None:
    text = 'é = "😀"\r\n\r\n\r\ndef f(ü):\r\n    ö = ü * 2  # größer\r\n    return ö\r\n'
    start = text.index("ü * 2")
    edits = (Edit(start, start + 5, "abs(ü)"),)
    assert guard(text, apply(text, edits), edits, [(text.index("ö = "), start + 5)]) is None
    assert guard(text, apply(text, edits), edits, []) is not None


def test_a_function_may_go_in_front_of_one_that_changes() -> None:
    text = "import mlx.core as mx\n\n\ndef _n(x):\n    return x\n\n\ndef f(x):\n    return _n(x) @ x\n"
    gone, named = text[text.index("def _n") : text.index("def f")], "return _n(x) @ x"
    at, call = text.index(gone), text.index("_n(x) @")
    edits = (Edit(at, at + len(gone), ""), Edit(call, call + 5, "mx.g(x)"))
    spans = [(at, at + len(gone)), (text.index(named), text.index(named) + len(named))]
    assert guard(text, apply(text, edits), edits, spans) is None
    assert guard(text, apply(text, edits), edits, spans[:1]) is not None


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (" * ", "", "ab"),  # joined to what stands beside it
        ("a * b", "a.c(axis=b)", ""),
        ("a * b", "a.c(axis=d)", "d"),
        ("a * b", "d == a", "d"),
        ("a * b", "(d := a) * d", ""),
        ("a * b", "[d for d in b if d]", ""),
        ("a * b", "f'{d}'", "d"),
        ("a * b", "a . d", ""),
        ("a * b", "max(a, b)", ""),
        ("a * b", "\ufb01(a)", "fi"),  # as Python reads it
    ],
)
def test_what_is_written_reads_no_new_name(old: str, new: str, why: str) -> None:
    found = verdict(old, new, "x = a * b", text="a = b = 1\nx = a * b\n")
    assert found == (f"the result reads a name that isn't there: {why}" if why else "")


@pytest.mark.parametrize("new", ["'''", "x = a \\\n", "#"])
def test_a_comment_that_becomes_something_else_is_lost(new: str) -> None:
    text = "x = a + b\ny = 1  # why\nz = '''\n'''\n"
    assert verdict("x = a + b\n", new, text, text=text) != ""
