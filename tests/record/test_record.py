"""`fuselint record`: what a program's functions are called with, on this Python; and what the analysis makes of it."""

import json
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("mlx.core")

from fuselint.config import Settings
from fuselint.page import gather
from fuselint.record import observer
from fuselint.recorded import find, load, merged

MODEL = """
import math

import mlx.core as mx
import mlx.nn as nn


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_heads = args.heads
        self.scale = 0.5
        self.weight = mx.ones((8,), dtype=mx.bfloat16)
        self.proj = nn.Linear(args.dims, args.dims, bias=False)

    def __call__(self, q, k, v, mask=None):
        scores = (q * self.scale) @ k.transpose(0, 1, 3, 2)
        if mask is not None:
            scores = scores + mask
        return mx.softmax(scores, axis=-1, precise=True) @ v


def scaled(x, by: int = 2):
    def inner(y):
        return y * by

    return inner(x)
"""
MAIN = """
import sys
from types import SimpleNamespace

import mlx.core as mx
from model import Attention, scaled

layer = Attention(SimpleNamespace(heads=4, dims=32))
mask = mx.full((6, 6), -1e9, dtype={mask}) if {mask} else None
for length in {lengths}:
    q = mx.ones((1, 4, length, 64), dtype=mx.bfloat16)
    k = mx.ones((1, 4, 6, 64), dtype=mx.bfloat16)
    out = layer(q, k, k, mask if length > 1 else None)
for _ in range(100):
    scaled(mx.ones((3,)), by=5)
print("done", sys.argv[1:])
"""


@pytest.fixture
def recorded(fuselint, tmp_path):
    """Writes a model and a program, and runs the program recorded; returns what was printed and the facts."""

    def run(*options, main=MAIN, mask="mx.bfloat16", lengths="[6, 1, 1]", model=MODEL):
        (tmp_path / "model.py").write_text(model)
        (tmp_path / "main.py").write_text(main.replace("{mask}", mask).replace("{lengths}", lengths))
        ran = fuselint("record", *options, "--", sys.executable, "main.py", "--flag", "x")
        path = tmp_path / ".fuselint" / "facts.json"
        return ran, json.loads(path.read_text()) if path.exists() else None

    return run


def test_what_is_recorded(recorded):
    ran, facts = recorded()
    assert ran.code == 0
    assert "done ['--flag', 'x']" in ran.out
    assert "written to .fuselint/facts.json" in ran.err
    functions = facts["files"]["model.py"]["functions"]
    assert set(functions) == {"Attention.__init__", "Attention.__call__", "scaled", "scaled.<locals>.inner"}
    assert functions["scaled"]["calls"] == functions["scaled.<locals>.inner"]["calls"] == 100
    (call,) = (s["values"] for s in functions["scaled"]["signatures"])
    assert call == {"x": {"array": [3], "dtype": "float32"}, "by": {"value": 5}}
    prefill, decode = (s["values"] for s in functions["Attention.__call__"]["signatures"])
    assert prefill["q"] == {"array": [1, 4, 6, 64], "dtype": "bfloat16"}
    assert decode["q"]["array"] == [1, 4, 1, 64]
    assert decode["mask"] == {"value": None}
    assert prefill["self.weight"] == {"array": [8], "dtype": "bfloat16"}
    assert prefill["self.n_heads"] == {"value": 4}
    assert prefill["self.proj"]["holds"] == {"weight": {"array": [32, 32], "dtype": "float32"}}
    assert functions["Attention.__init__"]["signatures"][0]["values"]["args"]["numbers"] == {"heads": 4, "dims": 32}


def test_only_below_the_paths(recorded, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    ran, facts = recorded("--path", "elsewhere")
    assert ran.code == 2 and facts is None
    assert "nothing of elsewhere ran" in ran.err
    ran, facts = recorded("--path", "model.py")
    assert set(facts["files"]) == {"model.py"}
    assert "there is no nowhere" in recorded("--path", "nowhere")[0].err


def test_the_program_keeps_its_exit_code_and_its_own_sitecustomize(recorded, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.MARK = 7\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    ran, facts = recorded(main=MAIN + "\nsys.exit(MARK)\n")
    assert ran.code == 7
    assert facts["files"]["model.py"]["functions"]["scaled"]["calls"] == 100


def test_a_program_that_fails_is_recorded_up_to_there(recorded):
    ran, facts = recorded(main=MAIN + "\nraise ValueError\n")
    assert ran.code == 1
    assert "model.py" in facts["files"]


def test_what_can_not_be_run(fuselint):
    ran = fuselint("record", "--", "no-such-command-at-all")
    assert ran.code == 2 and "can't be run" in ran.err
    assert fuselint("record").code == 2


def test_worker_processes(recorded):
    main = """
    import multiprocessing
    import mlx.core as mx
    from model import scaled

    if __name__ == "__main__":
        for _ in range(2):
            p = multiprocessing.get_context("spawn").Process(target=scaled, args=(3,))
            p.start()
            p.join()
    """
    _, facts = recorded(main=textwrap.dedent(main))
    assert facts["files"]["model.py"]["functions"]["scaled"]["calls"] == 2


# --- the analysis ----------------------------------------------------------------------------------------------------


def findings(fuselint, *options):
    ran = fuselint("check", "model.py", "--output-format", "json", *options)
    return {f["code"]: f for f in json.loads(ran.out)}, ran


def test_a_recorded_mask_proves_the_fix(recorded, fuselint):
    recorded()
    before, _ = findings(fuselint, "--no-facts")
    after, _ = findings(fuselint)
    assert before["FUS211"]["fix"]["applicability"] == "unsafe"
    assert after["FUS211"]["fix"]["applicability"] == "safe"
    assert any(n.endswith("(as recorded)") for n in after["FUS211"]["fix"]["needs"])
    proven = [o for o in after["FUS211"]["obligations"] if "as recorded" in o["because"]]
    assert proven and all(o["verdict"] == "proven" for o in proven)
    assert before["FUS211"]["fix"]["edits"] == after["FUS211"]["fix"]["edits"]
    assert after["FUS211"]["traffic"]["calls"] == 3
    assert before["FUS211"]["traffic"]["calls"] is None


def test_what_was_recorded_otherwise_stays_open(recorded, fuselint):
    """A float32 mask raises beside half-precision queries: the run is no proof, and says why."""
    recorded(mask="mx.float32")
    after, _ = findings(fuselint)
    assert after["FUS211"]["fix"]["applicability"] == "unsafe"


def test_sizes_become_numbers(recorded, fuselint):
    recorded()
    traffic = findings(fuselint)[0]["FUS211"]["traffic"]
    assert set(traffic["sources"].values()) == {"recorded"}
    assert traffic["assumed"] == []
    stated = findings(fuselint, "--shape", "L=3")[0]["FUS211"]["traffic"]
    assert "stated" in stated["sources"].values()


def test_the_phase_chooses_the_call(recorded, fuselint):
    recorded()
    saved = {p: findings(fuselint, "--phase", p)[0]["FUS211"]["traffic"]["saved_at"] for p in ("prefill", "decode")}
    assert saved["prefill"] > saved["decode"]


def test_a_changed_file_is_not_believed(recorded, fuselint, tmp_path):
    recorded()
    (tmp_path / "model.py").write_text(MODEL + "\n# edited\n")
    after, ran = findings(fuselint)
    assert "model.py: changed since it was recorded: its facts are dropped" in ran.err
    assert after["FUS211"]["fix"]["applicability"] == "unsafe"
    assert after["FUS211"]["traffic"]["calls"] is None


def test_the_source_wins(recorded, fuselint, tmp_path):
    """The source unpacks four axes: a recorded rank of three is not believed."""
    recorded()
    path = tmp_path / ".fuselint" / "facts.json"
    data = json.loads(path.read_text())
    for s in data["files"]["model.py"]["functions"]["Attention.__call__"]["signatures"]:
        s["values"]["mask"] = {"array": [6, 6], "dtype": "bfloat16"}
        s["values"]["q"] = {"array": [4, 6, 64], "dtype": "bfloat16"}
    path.write_text(json.dumps(data))
    assert findings(fuselint)[0]["FUS211"]["fix"]["applicability"] == "unsafe"


def test_fix_takes_what_the_run_proves(recorded, fuselint):
    recorded()
    assert "scaled_dot_product_attention" not in fuselint("fix", "model.py", "--select", "FUS211", "--no-facts").out
    assert "scaled_dot_product_attention" in fuselint("fix", "model.py", "--select", "FUS211").out


def test_explain_says_what_was_recorded(recorded, fuselint):
    recorded()
    line = MODEL[: MODEL.index("return mx.softmax")].count("\n") + 1
    assert "its dtype promotes to the queries' (as recorded: " in fuselint("explain", f"model.py:{line}").out


def test_ranking_by_calls(recorded, fuselint):
    """The function that runs a hundred times comes first, though one call of the other saves more."""
    model = MODEL + "\n\ndef often(x):\n    return mx.sin(x) * 2 + 1\n"
    main = MAIN.replace("import Attention, scaled", "import Attention, often, scaled").replace(
        "    scaled(mx.ones((3,)), by=5)", "    scaled(mx.ones((3,)), by=5)\n    often(mx.ones((1, 16)))"
    )
    recorded(main=main, model=model)
    shown = json.loads(fuselint("check", "model.py", "--output-format", "json").out)
    assert shown[0]["function"] == "often"
    shown = json.loads(fuselint("check", "model.py", "--output-format", "json", "--no-facts").out)
    assert shown[-1]["function"] == "often"


def test_check_imports_no_mlx(recorded, tmp_path):
    recorded()
    code = """
import sys
from fuselint.cli import main
try:
    main(["check", "model.py"])
except SystemExit:
    assert "mlx.core" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)


@pytest.mark.parametrize("text", ["", "{}", '{"version": 9, "files": {}}', '{"version": 1, "files": {"a": 3}}'])
def test_files_that_are_not_ours(fuselint, tmp_path, text):
    (tmp_path / "model.py").write_text("import mlx.core as mx\n\n\ndef f(x):\n    return mx.sin(x) * 2 + 1\n")
    (tmp_path / "facts.json").write_text(text)
    ran = fuselint("check", "model.py", "--facts", "facts.json")
    assert ran.code == 2 and "facts.json" in ran.err


def test_a_file_that_was_moved_beside_the_code(recorded, fuselint, tmp_path):
    recorded()
    (tmp_path / ".fuselint" / "facts.json").rename(tmp_path / "facts.json")
    assert findings(fuselint)[0]["FUS211"]["traffic"]["calls"] is None
    assert findings(fuselint, "--facts", "facts.json")[0]["FUS211"]["traffic"]["calls"] == 3
    (tmp_path / "pyproject.toml").write_text('[tool.fuselint]\nfacts = "facts.json"\n')
    assert findings(fuselint)[0]["FUS211"]["traffic"]["calls"] == 3


def test_the_nearest_file_is_the_lowest_layer(recorded, fuselint, tmp_path):
    """A configuration file goes over it, options over both; --isolated is about configuration alone."""
    recorded()
    nearest = tmp_path / ".fuselint" / "facts.json"

    def counts(*options):
        shown = json.loads(fuselint("config", "--format", "json", *options).out)["facts"]
        return shown["value"], shown["from"]

    assert counts() == (".fuselint/facts.json", [".fuselint/facts.json"])
    assert counts("--isolated") == (".fuselint/facts.json", [".fuselint/facts.json"])
    assert counts("--isolated", "--no-facts") == ("", ["--facts"])
    assert counts("--no-facts") == ("", ["--facts"])
    (tmp_path / "other.json").write_text(nearest.read_text())
    assert counts("--facts", "other.json") == ("other.json", ["--facts"])
    (tmp_path / "fuselint.toml").write_text('facts = "other.json"\n')
    assert counts() == ("other.json", ["fuselint.toml:1"])
    assert counts("--isolated") == (".fuselint/facts.json", [".fuselint/facts.json"])
    (tmp_path / "fuselint.toml").write_text('facts = ""\n')
    assert findings(fuselint)[0]["FUS211"]["traffic"]["calls"] is None
    (tmp_path / "fuselint.toml").write_text("facts = 3\n")
    ran = fuselint("check", "model.py")
    assert ran.code == 2 and 'fuselint.toml:1: "facts" is the path of a file of `fuselint record`' in ran.err


def test_the_page_counts_what_was_recorded(recorded, fuselint, tmp_path):
    """The kernels that are drawn of a finding have its sizes."""
    recorded()
    settings = Settings(facts=str(tmp_path / ".fuselint" / "facts.json"), select=("FUS211",))
    (shown,) = gather(["model.py"], settings, verify=False).shown
    assert shown.finding.traffic.calls == 3
    assert shown.before.bytes - shown.after.bytes == shown.finding.traffic.saved_at


def test_the_nearest_file(tmp_path):
    (tmp_path / ".fuselint").mkdir()
    (tmp_path / ".fuselint" / "facts.json").write_text('{"version": 1, "files": {}}')
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert find(tmp_path / "a" / "b") == tmp_path / ".fuselint" / "facts.json"
    assert load(find(tmp_path)).files == {}


def test_processes_are_added_up(tmp_path):
    def part(calls, length):
        values = {"x": {"array": [length], "dtype": "float32"}}
        function = {"line": 1, "calls": calls, "signatures": [{"seen": calls, "values": values}]}
        return {"files": {str(tmp_path / "m.py"): {"sha256": "0", "functions": {"f": function}}}}

    found = merged([part(2, 8), part(3, 8), part(1, 9)], tmp_path, ["x"])["files"]["m.py"]["functions"]["f"]
    assert found["calls"] == 6
    assert [s["seen"] for s in found["signatures"]] == [5, 1]


# --- the observer ----------------------------------------------------------------------------------------------------


def test_qualified_names_of_old_pythons(tmp_path):
    path = tmp_path / "m.py"
    path.write_text("class A:\n    @staticmethod\n    def f():\n        def g():\n            pass\n        return g\n")
    space = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    assert observer.qualname(str(path), space["A"].f.__code__) == "A.f"
    assert observer.qualname(str(path), space["A"].f().__code__) == "A.f.<locals>.g"


def test_the_observer_needs_nothing_of_fuselint():
    run = f"import runpy, sys; runpy.run_path({observer.__file__!r})"
    code = f"{run}; assert not any(m.startswith('fuselint') for m in sys.modules)"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


@pytest.mark.slow
def test_the_program_is_hardly_slower(recorded, tmp_path):
    """Below a tenth where a decoding loop calls a dozen functions a token."""
    main = MAIN + textwrap.dedent("""
        import time
        x = mx.ones((64, 64))
        start = time.process_time()
        for _ in range(3000):
            scaled(x)
            mx.eval(x @ x)
        print("took", time.process_time() - start)
        """)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "main.py").write_text(main.replace("{mask}", "mx.bfloat16").replace("{lengths}", "[6]"))

    def took(*before):
        command = [*before, sys.executable, "main.py"]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        return float(ran.stdout.split("took")[1])

    watched = (sys.executable, "-m", "fuselint", "record", "-q", "--")
    pairs = [(took(), took(*watched)) for _ in range(5)]
    assert min(w for _, w in pairs) < 1.25 * min(p for p, _ in pairs), pairs  # of a loaded machine
