"""A child whose parent is killed ends too."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

CHILD = "from fuselint.orphan import end_with_parent; end_with_parent(); import time; print(flush=True); time.sleep(60)"
PARENT = (
    "import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
)
PARENT += "c.stdout.readline(); print(c.pid, flush=True); time.sleep(60)"


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    ran = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return ran.stdout.strip() != "" and not ran.stdout.startswith("Z")


@pytest.mark.skipif(os.name != "posix", reason="there a parent's number stays")
def test_a_child_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(child=CHILD)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert runs(child)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while runs(child) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not runs(child)
