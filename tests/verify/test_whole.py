"""Two versions of a package, run in child processes with the same weights and inputs."""

import json
import os
import textwrap
import time

import pytest

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.slow

from fuselint.report.verify import render  # noqa: E402
from fuselint.verify.whole.process import _most_memory  # noqa: E402
from fuselint.verify.whole.results import leaves  # noqa: E402

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n"
NORM = """
class Norm(nn.Module):
    def __init__(self, dims, eps=1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.bias = mx.zeros((dims,))
        self.eps = eps

    def __call__(self, x):
        y = x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + self.eps)
        return y * self.weight + self.bias


def inputs():
    return {"x": 0.01 * mx.random.normal((2, 3, 8))}
"""
CALL = NORM[NORM.index("        y = ") : NORM.index("\n\n\ndef inputs")]


def fused(text="mx.fast.rms_norm(x, self.weight, self.eps) + self.bias"):
    return NORM.replace(CALL, f"        return {text}")


@pytest.fixture
def verified(fuselint, tmp_path):
    """Writes both versions, and runs the command on them."""

    def run(before, after, entry="norm:Norm", *options, init="8", inputs="norm:inputs", package="norm.py"):
        for name, text in (("before", before), ("after", after)):
            file = tmp_path / name / package
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(HEAD + textwrap.dedent(text))
        more = [*(["--init", init] if init else []), *(["--inputs", inputs] if inputs else [])]
        return fuselint("verify", "before", "after", "--entry", entry, "--device", "cpu", *more, *options)

    return run


def test_the_same(verified):
    ran = verified(NORM, fused())
    assert ran.code == 0, ran
    assert ran.out.startswith("norm:Norm: the same: 2 values, within rounding\n")
    assert "no time is measured on the CPU" in ran.out
    (kernels,) = (line.split() for line in ran.out.splitlines() if line.split()[:1] == ["kernels"])
    assert int(kernels[1]) > int(kernels[2]) > 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mx.fast.rms_norm(x, self.weight, 1e-6) + self.bias", "differs by"),
        ("mx.fast.rms_norm(x, None, self.eps) + self.bias", "differs by"),  # the weight is made of ones
        ("mx.fast.rms_norm(x, self.weight, self.eps)", "differs by"),  # the bias is made of zeros
        ("(mx.fast.rms_norm(x, self.weight, self.eps) + self.bias)[0]", "the shape is (3, 8) instead of (2, 3, 8)"),
        ("(mx.fast.rms_norm(x, self.weight, self.eps) + self.bias).astype(mx.float16)", "the dtype is float16"),
        ("mx.fast.rms_norm(x, self.weight, self.eps) + self.bias + mx.log(mx.array(-1.0))", "are inf or NaN after"),
        ("[mx.fast.rms_norm(x, self.weight, self.eps) + self.bias]", "only before"),
        ("3.0", "an array before, 3.0 after"),
    ],
)
def test_different(verified, text, says):
    ran = verified(NORM, fused(text))
    assert ran.code == 1, ran
    assert "norm:Norm: DIFFERENT" in ran.out
    assert says in ran.out


def test_half_precision(verified):
    """What one rounding of each weight does, times a few, is allowed; a wrong eps is more."""
    assert verified(NORM, fused(), "norm:Norm", "--dtype", "bf16").code == 0
    wrong = fused("mx.fast.rms_norm(x, self.weight, 0.0) + self.bias")
    assert verified(NORM, wrong, "norm:Norm", "--dtype", "bf16").code == 1


def test_a_given_tolerance(verified):
    off = fused("1.01 * (mx.fast.rms_norm(x, self.weight, self.eps) + self.bias)")
    assert verified(NORM, off, "norm:Norm", "--tolerance", "0.02").code == 0
    assert verified(NORM, off, "norm:Norm", "--tolerance", "0.005").code == 1


def test_weights_that_are_drawn_in_another_order(verified):
    text = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = nn.Linear(8, 8)

        def __call__(self, x):
            return self.b(self.a(x))

    def inputs():
        return (mx.random.normal((4, 8)),)
    """
    other = text.replace("self.a = nn", "self.B = nn").replace("self.b = nn", "self.a = nn").replace("self.B", "self.b")
    assert verified(text, other, "norm:Model", init="").code == 0
    swapped = text.replace("self.b(self.a(x))", "self.a(self.b(x))")
    assert verified(text, swapped, "norm:Model", init="").code == 1


def test_weights_that_only_one_has(verified):
    ran = verified(NORM, fused().replace("self.eps = eps", "self.eps = eps\n        self.more = mx.ones(3)"))
    assert ran.code == 0
    assert "after: weights only after: more" in ran.out


CACHE = """
class Cache:
    def __init__(self):
        self.rows = [mx.zeros((1, 4))]

def step(x, cache):
    cache.rows.append(x * 2)
    return mx.concatenate(cache.rows)

def inputs():
    return {"x": mx.random.normal((1, 4)), "cache": Cache()}
"""


def test_what_a_call_changes_in_its_inputs(verified):
    forgets = CACHE.replace("cache.rows.append(x * 2)", "rows = [*cache.rows, x * 2]").replace(
        "mx.concatenate(cache.rows)", "mx.concatenate(rows)"
    )
    assert verified(CACHE, CACHE.replace("x * 2", "x + x"), "norm:step", init="").code == 0
    ran = verified(CACHE, forgets, "norm:step", init="")
    assert ran.code == 1
    assert "keyword['cache'].rows[1]" in ran.out
    assert verified(CACHE, forgets, "norm:step", "--only", "result", init="").code == 0
    assert "no value nothing" in verified(CACHE, forgets, "norm:step", "--only", "nothing", init="").err


UNRULY = {
    "raises": ("raise ValueError('no')", "raised ValueError: no"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed: SIGSEGV"),
    "exits": ("import os; os._exit(3)", "crashed: exit code 3"),
    "leaves": ("raise SystemExit(4)", "raised SystemExit: 4"),
    "hangs": ("import time; time.sleep(60)", "timed out after 8 s"),
}


@pytest.mark.parametrize("name", UNRULY)
def test_unruly_versions(verified, name):
    bad, says = UNRULY[name]
    good = "def f():\n    return mx.ones(3)\n"
    unruly = f"def f():\n    {bad}\n    return mx.ones(3)\n"
    ran = verified(good, unruly, "norm:f", "--timeout", "8", init="", inputs="")
    assert ran.code == 1
    assert f"the version after {says}" in ran.out
    ran = verified(unruly, good, "norm:f", "--timeout", "8", init="", inputs="")
    assert ran.code == 2
    assert f"before: {says}" in ran.err


HOG = """import mlx.core as mx


def f():
    rows = []
    while True:
        rows.append([0] * (1 << 22))
"""


def test_a_version_that_takes_too_much_memory(verified, monkeypatch):
    monkeypatch.setattr("fuselint.verify.whole.process._most_memory", lambda: 1 << 30)
    ran = verified("def f():\n    return mx.ones(3)\n", HOG, "norm:f", init="", inputs="")
    assert ran.code == 1
    assert "the version after crashed: out of memory" in ran.out


def test_memory_is_what_the_machine_has_left():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < _most_memory() <= 0.9 * total


FORKS = """import os, time


def f():
    if os.fork() == 0:
        while True:
            with open({path!r}, "a") as file:
                file.write(".")
            time.sleep(0.05)
    return mx.ones(3)
"""


@pytest.mark.skipif(os.name != "posix", reason="there is no fork")
def test_what_a_version_starts_ends_with_it(verified, tmp_path):
    path = tmp_path / "alive"
    good = "def f():\n    return mx.ones(3)\n"
    assert verified(good, FORKS.format(path=str(path)), "norm:f", init="", inputs="").code == 0
    written = path.stat().st_size
    time.sleep(0.5)
    assert path.stat().st_size == written > 0


def test_what_it_prints_is_not_the_report(verified):
    text = "def f():\n    print('{}')\n    return mx.ones(3)\n"
    ran = verified(text, text.replace("'{}'", "'[]'"), "norm:f", "--report", "json", init="", inputs="")
    assert json.loads(ran.out)["same"] is True


def test_json(verified):
    ran = verified(NORM, fused(), "norm:Norm", "--report", "json", "--seed", "7")
    found = json.loads(ran.out)
    assert found["same"] and found["question"]["seed"] == 7 and found["mlx"] == mx.__version__
    result = next(leaf for leaf in found["leaves"] if leaf["path"] == "result")
    assert result["shape"] == [2, 3, 8] and result["gap"] <= result["allowed"]
    assert found["costs"]["after"]["kernels"] < found["costs"]["before"]["kernels"]
    assert found["costs"]["after"]["seconds"] is None  # on the CPU


def test_a_page(verified, tmp_path):
    ran = verified(NORM, fused("x < 0"), "norm:Norm", "--report", "html", "-o", "page.html")
    text = (tmp_path / "page.html").read_text()
    assert ran.out == "" and ran.code == 1
    assert '<tr class="wrong"><td>result</td>' in text
    assert "x &lt; 0" not in text and "<script" not in text and "http" not in text


def test_packages_and_files(verified, fuselint, tmp_path):
    """A package may be named itself, its folder, or one of its files."""
    for name, text in (("before", NORM), ("after", fused())):
        (tmp_path / name / "pack").mkdir(parents=True)
        (tmp_path / name / "pack" / "__init__.py").write_text("")
        (tmp_path / name / "pack" / "norm.py").write_text(HEAD + text)
    options = ("--entry", "pack.norm:Norm", "--init", "8", "--inputs", "pack.norm:inputs", "--device", "cpu")
    for one, two in (("before/pack", "after/pack"), ("before", "after/pack/norm.py")):
        assert fuselint("verify", one, two, *options).code == 0


def test_a_driver_beside_both(verified, tmp_path):
    """The entry may stand in the current folder, and import what is compared; a function makes its own weights."""
    run = "def run():\n    return Norm(8)(mx.random.normal((2, 8)))\n"
    (tmp_path / "drive.py").write_text(f"import mlx.core as mx\nfrom norm import Norm\n\n{run}")
    assert verified(NORM, fused(), "drive:run", init="", inputs="").code == 0
    assert verified(NORM, fused("x"), "drive:run", init="", inputs="").code == 1


@pytest.mark.parametrize(
    ("entry", "options", "says"),
    [
        ("norm", (), "expected MODULE:CALLABLE"),
        ("norm:Nor", (), 'norm has no Nor; did you mean "Norm"?'),
        ("norm:Norm", (), "give --inputs"),
        ("other:f", ("--init", ""), "imports nothing from before"),
    ],
)
def test_what_can_not_be_asked(verified, tmp_path, entry, options, says):
    (tmp_path / "other.py").write_text("def f():\n    return 1\n")
    ran = verified(NORM, NORM, entry, *options, inputs="", init="" if entry == "other:f" else "8")
    assert ran.code == 2
    assert says in ran.err, ran.err


def test_missing_and_same_versions(fuselint, tmp_path):
    (tmp_path / "a").mkdir()
    assert "there is no b" in fuselint("verify", "a", "b", "--entry", "m:f").err
    assert "both versions are imported from" in fuselint("verify", "a", "a", "--entry", "m:f").err


def test_leaves():
    class Held:
        def __init__(self):
            self.offset = 3
            self.keys = mx.zeros(2)

    got = dict(leaves({"b": [1, (mx.ones(1),)], "a": Held(), "f": len}, "result"))
    assert list(got) == ["result['a'].keys", "result['a'].offset", "result['b'][0]", "result['b'][1][0]"]
    endless = []
    endless.append(endless)
    assert len(list(leaves(endless, "result"))) == 1


def timed(before, after):
    from fuselint.verify.whole.model import Comparison, Cost, Leaf, Question

    costs = {"before": Cost(0, seconds=before, spread=0.1), "after": Cost(0, seconds=after, spread=0.1)}
    question = Question("a", "b", "m:f")
    return render(Comparison(question, True, (Leaf("result"),), "gpu (M9)", "1", costs), "text")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (3.0, 1.0, "3.00 times as fast"),
        (1.0, 3.0, "slower: 3.00 times as long"),
        (1.1, 1.0, "no faster beyond noise"),
        (None, None, "not timed"),
    ],
)
def test_what_times_say(before, after, says):
    assert says in timed(before, after)
    assert "CPU" not in timed(before, after)


def test_versions_are_timed_in_turns(monkeypatch):
    from fuselint.verify.whole import process

    order = []

    class Running:
        def __init__(self, name, seconds):
            self.name, self.seconds = name, seconds

        def time(self, count):
            order.append(self.name)
            return [self.seconds] * count

    got = process._timed({"before": Running("b", 2.0), "after": Running("a", 1.0)})
    assert got == {"before": (2.0, 0.0), "after": (1.0, 0.0)}
    assert "".join(order) == "ba" * (len(order) // 2) and len(order) > 20
