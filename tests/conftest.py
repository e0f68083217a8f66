from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from support import Ran


@pytest.fixture
def fuselint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Ran]:
    """Runs the command line in an empty folder: arguments in, exit code, stdout and stderr out."""
    from fuselint.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> Ran:
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in args], prog_name="fuselint")
        out, err = capfdbinary.readouterr()
        code = stop.value.code
        return Ran(code if isinstance(code, int) else 0, out.decode(), err.decode())

    return run


@pytest.fixture(autouse=True)
def unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are those of the default chip, whatever the tests run on."""
    monkeypatch.setattr("fuselint.chips.this_machine", lambda: "")


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the collector took a sixth of the time to look through it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000)
