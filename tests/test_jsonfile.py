"""A broken file of a project ends a run with exit code 2, and a line that names the file and the key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support import Ran

Run = Callable[..., Ran]

DEEP = "[" * 100_000
LONG = '{"version": ' + "9" * 5000 + "}"

BROKEN = [
    (b"", ":1:1: not valid JSON: Expecting value"),
    (b"{", ":1:2: not valid JSON: Expecting property name"),
    (b'{\n "version": 1 2}', ":2:15: not valid JSON: "),
    (b"\xff\xfe{}", ": not UTF-8 at byte 0"),
    (b"[]", ": it is a list, not an object"),
    (b"null", ": it is null, not an object"),
    (b"{}", ': has no "version"'),
    (b'{"version": true}', ': "version" is true or false, not a whole number'),
    (b'{"version": 99}', ': "version" is that of another version'),
    (DEEP.encode(), ": nested too deeply"),
    (LONG.encode(), ": not valid JSON: Exceeds the limit"),
]
FACTS = [
    ("{}", 'has no "files"'),
    ('{"files": {"m.py": 3}}', '"files.m.py" is a whole number, not an object'),
    ('{"files": {"m.py": {"functions": {"f": {"calls": "x"}}}}}', '"files.m.py.functions.f.calls" is a string'),
    (
        '{"files": {"m.py": {"functions": {"f": {"calls": 1, "signatures": [{"values": 3}]}}}}}',
        '"files.m.py.functions.f.signatures.0.values" is a whole number, not an object',
    ),
    (
        '{"files": {"m.py": {"functions": {"f": {"calls": 1, "signatures": [{"values": {"x": {"array": ["T"],'
        ' "dtype": "float32"}}}]}}}}}',
        '"files.m.py.functions.f.signatures.0.values.x.array.0" is a string, not a whole number',
    ),
]
BASELINE = [
    ("{}", 'has no "findings"'),
    ('{"findings": []}', '"findings" is a list, not an object'),
    ('{"findings": {"m.py": ["a"]}}', '"findings.m.py" is a list, not an object'),
    ('{"findings": {"m.py": {"a": null}}}', '"findings.m.py.a" is null, not a string'),
]


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "m.py"
    path.write_text("import mlx.core as mx\n\n\ndef f(x):\n    return x * mx.sigmoid(x)\n")
    return path


@pytest.mark.parametrize("option", ["--facts", "--baseline"])
@pytest.mark.parametrize(("data", "said"), BROKEN, ids=range(len(BROKEN)))
def test_a_file_that_is_none(fuselint: Run, module: Path, option: str, data: bytes, said: str) -> None:
    Path("broken.json").write_bytes(data)
    ran = fuselint("check", option, "broken.json")
    assert ran.code == 2 and ran.err.count("\n") == 1 and f"broken.json{said}" in ran.err
    assert ("record again with" if option == "--facts" else "write it anew with") in ran.err


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [*(("--facts", *c) for c in FACTS), *(("--baseline", *c) for c in BASELINE)],
)
def test_a_value_that_is_wrong(fuselint: Run, module: Path, option: str, text: str, said: str) -> None:
    version = '{"version": 1, ' if text != "{}" else '{"version": 1'
    Path("broken.json").write_text(version + text[1:])
    ran = fuselint("check", option, "broken.json")
    assert ran.code == 2 and f"broken.json: {said}" in ran.err


@pytest.mark.parametrize("name", ["pyproject.toml", "fuselint.toml"])
def test_a_configuration_that_is_not_utf_8(fuselint: Run, module: Path, name: str) -> None:
    Path(name).write_bytes(b"[tool.fuselint]\nselect = ['\xff']\n")
    ran = fuselint("check")
    assert ran.code == 2 and f"{name}: not valid TOML: it is not UTF-8 at byte 27" in ran.err
    Path(name).unlink()
    Path("pyproject.toml").write_bytes(b"[tool.other]\nname = '\xff'\n")
    assert fuselint("check").code == 1, "it says nothing to us"


CELL = '{"cell_type": "code", "source": ["import mlx.core as mx\\n"]}'


@pytest.mark.parametrize(
    "text",
    [
        '{"cells": ["import mlx", 3, null, {"cell_type": "code", "source": [3]}]}',
        '{"cells": [' + CELL + '], "metadata": [3]}',
        '{"cells": [' + CELL + '], "metadata": {"kernelspec": 3, "language_info": []}}',
        '{"cells": [{"cell_type": "code", "source": "import mlx.core as mx\\r\\n"}]}',
    ],
)
def test_a_notebook_of_odd_cells_is_analysed_without_them(fuselint: Run, module: Path, text: str) -> None:
    Path("n.ipynb").write_text(text)
    ran = fuselint("check", "n.ipynb")
    assert ran.code == 0 and "0 findings" in ran.err


@pytest.mark.parametrize("text", ['{"cells": [' + CELL, '["mlx"]', '{"cells": "mlx"}', '["mlx",' * 50_000])
def test_a_broken_notebook_is_a_finding(fuselint: Run, module: Path, text: str) -> None:
    Path("n.ipynb").write_text(text)
    ran = fuselint("check", "n.ipynb")
    assert ran.code in (1, 2) and "n.ipynb" in ran.out and "FUS000" in ran.out
