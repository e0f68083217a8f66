"""Near misses: the counterexamples of the rules say why they are none, wherever a single thing is against them."""

from __future__ import annotations

from functools import cache

import pytest

from fuselint.config import Settings
from fuselint.engine import check_file
from fuselint.finding import FileResult, Finding
from fuselint.rulebook import rules
from fuselint.source.text import FileText

HEAD = "import math\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"

NO_NEAR_MISS = {
    "FUS102": {4: "nothing says what it is for", 5: "too little to pay", 6: "too little to pay"},
    "FUS104": {5: "right"},
    "FUS106": {0: "changed in place", 1: "kept", 2: "kept", 3: "right", 4: "right", 6: "compiled", 8: "right",
               11: "returned", 12: "returned", 14: "work between", 17: "too small", 18: "right", 19: "too small"},
    "FUS107": {1: "right"},
    "FUS201": {10: "FUS202's finding"},
    "FUS203": {8: "rows too short to pay", 9: "FUS201's finding"},
    "FUS204": {0: "FUS202's finding", 2: "rows too few to pay", 4: "rows too short to pay"},
    "FUS205": {5: "FUS201's finding"},
    "FUS211": {2: "no attention", 3: "no attention"},
    "FUS221": {0: "no table", 3: "no table", 6: "another computation", 11: "a call elsewhere"},
    "FUS231": {3: "a number, no array"},
    "FUS232": {3: "another computation", 4: "another computation"},
    "FUS242": {0: "right", 1: "another computation"},
    "FUS252": {0: "right"},
    "FUS261": {3: "right"},
}  # fmt: skip
"""Counterexamples that more than one thing is against, or nothing at all."""

SAID = {
    ("FUS101", 0): "heads are repeated in interleaved order",
    ("FUS101", 2): "+ bias",
    ("FUS102", 0): "... + padding",
    ("FUS102", 1): "`mask` is returned too",
    ("FUS102", 2): "-100.0",
    ("FUS104", 0): "axis 1, not the last",
    ("FUS104", 2): "the result is cast back",
    ("FUS106", 5): "how many axes `x` has",
    ("FUS107", 2): "`p` is returned too",
    ("FUS107", 3): "axis 0, not the last",
    ("FUS201", 0): "eps stands inside the root",
    ("FUS201", 1): "axis 1, not the last",
    ("FUS201", 2): "`mean` goes over all axes",
    ("FUS201", 3): "`keepdims` isn't True",
    ("FUS201", 4): "`2 * x`",
    ("FUS201", 5): "`x + 1`",
    ("FUS201", 6): "takes the mean off",
    ("FUS201", 7): "`x.shape[1]` is another one",
    ("FUS201", 9): "the exponent is 2",
    ("FUS202", 0): "`x` is not centred",
    ("FUS202", 1): "eps stands inside the root",
    ("FUS202", 2): "ddof=1",
    ("FUS202", 4): "the sign is -",
    ("FUS202", 5): "it is `w`",
    ("FUS202", 6): "axis 1, not the last",
    ("FUS202", 7): "the second moment",
    ("FUS203", 0): "eps stands inside the root",
    ("FUS203", 1): "a floor under it",
    ("FUS203", 6): "ord=1",
    ("FUS204", 1): "next to each other",
    ("FUS204", 3): "how many axes `x` has",
    ("FUS205", 0): "`y` is returned too",
    ("FUS205", 3): "it is a sum",
    ("FUS211", 0): "mx.tanh(...) * 30",
    ("FUS211", 1): "`softmax` is also used outside",
    ("FUS211", 5): "axis -2, not the last",
    ("FUS211", 6): "`k` is transposed",
    ("FUS221", 1): "read interleaved",
    ("FUS221", 2): "`positions` may hold any",
    ("FUS221", 5): "the halves are `x1, x2`",
    ("FUS221", 7): "the exponent is negative",
    ("FUS221", 8): "cut in the middle",
    ("FUS231", 0): "it is also used elsewhere",
    ("FUS232", 0): "how many axes there are",
    ("FUS232", 5): "a cast to mx.int32",
    ("FUS241", 0): "is returned too",
    ("FUS251", 0): "+ 1e-6",
    ("FUS251", 1): "axis 0, not the last",
    ("FUS251", 2): "`2 * x`",
    ("FUS252", 3): "the reduced axis is kept",
    ("FUS252", 4): "`best` may name several",
    ("FUS252", 5): "it is `other`",
    ("FUS261", 0): "it is 1.5",
    ("FUS261", 1): "the sign is +",
    ("FUS261", 2): "it is 0.04",
    ("FUS261", 4): "it is `x`",
}
"""What is said of the counterexample of that number."""


def checked(text: str, **settings: object) -> FileResult:
    result = check_file(FileText("m.py", text), Settings(near_misses=True, **settings))  # type: ignore[arg-type]
    assert not result.errors
    return result


@cache
def near(code: str, number: int) -> tuple[Finding, ...]:
    rule = next(r for r in rules() if r.code == code)
    return checked(rule.counterexamples[number].source.lstrip("\n")).near_misses


def reasons(findings: tuple[Finding, ...] | list[Finding]) -> list[str]:
    return [f.fix.message for f in findings if f.fix]


@pytest.mark.slow
def test_most_counterexamples_say_what_is_against_them() -> None:
    tried = [r for r in rules() if r.nearly]
    meant = [(r.code, i) for r in tried for i in range(len(r.counterexamples)) if i not in NO_NEAR_MISS.get(r.code, {})]
    silent = [key for key in meant if not near(*key)]
    assert len(meant) > 80
    assert len(silent) < len(meant) / 8, silent


@pytest.mark.parametrize(("code", "number"), list(SAID))
def test_what_is_said(code: str, number: int) -> None:
    own = [f for f in near(code, number) if f.code == code]
    assert len(own) == 1
    assert SAID[code, number] in reasons(own)[0]
    assert own[0].message.startswith("near miss: ") and own[0].fix and own[0].fix.applicability == "none"
    assert [o.verdict for o in own[0].obligations].count("contradicted") == 1


def test_a_form_of_another_rule_is_named_as_that() -> None:
    assert [f.code for f in near("FUS201", 8)] == ["FUS203"]  # x / max(norm, eps)
    assert near("FUS201", 10) == ()  # a layer norm, which is found


NEARLY = HEAD + (
    "class Norm(nn.Module):\n"
    "    def __init__(self, dims: int):\n"
    "        super().__init__()\n"
    "        self.weight = mx.ones((dims,))\n\n"
    "    def __call__(self, x):\n"
    "        h = x.astype(mx.float32)\n"
    "        h = h / (mx.sqrt(mx.mean(h * h, axis=-1, keepdims=True)) + 1e-5)\n"
    "        return self.weight * h.astype(x.dtype)\n\n\n"
    "def unit(x):\n"
    "    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)\n"
)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_where_it_stands(newline: str) -> None:
    text = NEARLY.replace("\n", newline)
    result = checked(text)
    (miss,) = result.near_misses
    file = FileText("m.py", text, newline)
    shown = file.text[file.offset(miss.line, miss.column) : file.offset(miss.end_line, miss.end_column)]
    assert shown == "self.weight * h.astype(x.dtype)"
    assert (miss.code, miss.function) == ("FUS201", "Norm.__call__")
    assert "eps stands inside the root" in reasons([miss])[0]


def test_findings_are_those_that_are_found_without_it() -> None:
    assert checked(NEARLY).findings == check_file(FileText("m.py", NEARLY), Settings()).findings != ()
    assert check_file(FileText("m.py", NEARLY), Settings()).near_misses == ()


def test_it_can_be_selected_and_silenced() -> None:
    assert checked(NEARLY, select=("FUS202",)).near_misses == ()
    silenced = NEARLY.replace("h.astype(x.dtype)\n", "h.astype(x.dtype)  # noqa: FUS201\n")
    assert checked(silenced).near_misses == ()


@pytest.mark.parametrize(
    "text",
    [
        "def f(x): return x / (mx.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)\n",
        "@mx.compile\ndef f(x):\n    'Scaled.'\n    return x / (mx.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)\n",
        "class A:\n    async def f(self, x):\n"
        "        return x / (\n            mx.linalg.norm(x, axis=-1, keepdims=True)  # rows\n"
        "            + 1e-6\n        )\n",
        "def g(y):\n    def f(x):\n        return x / (mx.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)\n"
        "    return f(y) @ y\n",
    ],
)
def test_wherever_a_function_stands(text: str) -> None:
    found = checked(HEAD + text).near_misses
    assert [f.code for f in found][:1] == ["FUS203"] and "eps stands inside the root" in reasons(found)[0]


def test_forms_far_from_any_rule_are_no_near_miss() -> None:
    text = (
        HEAD + "def f(x, y):\n    return mx.sqrt(mx.sum(x, axis=-1)) - mx.cos(y) * mx.exp(y) @ x.T, mx.sigmoid(y @ x)\n"
    )
    assert checked(text).near_misses == ()


def test_an_axis_that_only_the_rank_makes_the_last() -> None:
    text = (
        HEAD + "def f(x, w, b):\n    u = x.mean(3, keepdims=True)\n    s = ((x - u) ** 2).mean(3, keepdims=True)\n"
        "    return (x - u) / mx.sqrt(s + 1e-5) * w + b\n"
    )
    said = reasons(checked(text).near_misses)
    assert any("how many axes `x` has" in r for r in said)
    assert not any("not the last" in r for r in said)
