"""What is known of a value that other files of the package compute. MLX says what is right."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from graph.packages import facts, graph, returned, write

from fuselint.graph.across import DEEPEST
from fuselint.graph.facts import MISSING
from fuselint.source.modules import Modules

BASE = """def causal(n, offset=0, window=None):
    rows = mx.arange(offset, offset + n)[:, None]
    mask = rows >= mx.arange(offset + n)[None]
    if window is not None:
        mask = mask & (rows < mx.arange(offset + n)[None] + window)
    return mask


def additive(n, dtype=mx.float32):
    return mx.where(causal(n), mx.array(0, dtype), mx.array(-1e9, dtype))


def plain(n):
    return mx.triu(mx.full((n, n), -1e9), k=1)


def create(h, full=False):
    n = h.shape[1]
    if n == 1:
        return None
    if full:
        return causal(n)
    return "causal"


def split(x):
    return x[..., :4], mx.sum(x, axis=-1)


@mx.compile
def swiglu(gate, x):
    return nn.silu(gate) * x


def grow(x, n=2):
    return mx.concatenate([x] * n, axis=0)


def wide(x):
    return x * mx.array(0.5)


def back(x):
    return wide(x).astype(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, dims, eps=1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x):
        return mx.fast.rms_norm(x, self.weight, self.eps)


class Mean(nn.Module):
    def __call__(self, x):
        return mx.mean(x, axis=-1)


class Shift(RMSNorm):
    def __init__(self, dims):
        super().__init__(dims)
        self._shift = mx.zeros((dims,), mx.float16)

    def __call__(self, x):
        return x + self._shift


class Up(nn.Module):
    def __init__(self, dims, factor=4):
        super().__init__()
        self.proj = nn.Linear(dims, factor * dims, bias=False)

    def __call__(self, x):
        return self.proj(x)


def initialize(kind, dims):
    if kind == "fast":
        return nn.RoPE(dims)
    return Mean()
"""

USER = "from . import base\nfrom .base import *\nfrom .base import causal as cm, RMSNorm\n\n\n"


def judged(tmp_path: Path, body: str, *, init: str = "pass", values: str = "x") -> tuple[Any, Any]:
    """The fact of what `f(x)` returns, and what MLX returns for x of shape (2, 3, 8) in bfloat16."""
    pytest.importorskip("mlx.core")
    user = (
        USER + "class Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init}\n\n    def __call__(self, x: mx.array):\n        x = x.reshape(2, 3, 8).astype(mx.bfloat16)\n"
        f"        return {body}\n"
    )
    package = write(tmp_path, {"base.py": BASE, "user.py": user})
    sys.path.insert(0, str(tmp_path))
    try:
        for name in [m for m in sys.modules if m == "pack" or m.startswith("pack.")]:
            del sys.modules[name]
        import mlx.core as mx

        module = importlib.import_module("pack.user")
        result = module.Block()(mx.ones((2, 3, 8)))
    finally:
        sys.path.remove(str(tmp_path))
    at = graph(package / "user.py", "Block.__call__")
    return at.facts.of(returned(at)), result


@pytest.mark.parametrize(
    ("body", "init"),
    [
        ("causal(5)", "pass"),
        ("cm(5, 2)", "pass"),
        ("base.causal(5, window=3)", "pass"),
        ("additive(5)", "pass"),
        ("base.additive(5, mx.float16)", "pass"),
        ("additive(5, dtype=x.dtype)", "pass"),
        ("plain(4)", "pass"),
        ("create(x, full=True)", "pass"),
        ("swiglu(x, x)", "pass"),
        ("grow(x)", "pass"),
        ("wide(x)", "pass"),
        ("back(x)", "pass"),
        ("split(x)[0]", "pass"),
        ("split(x)[1]", "pass"),
        ("self.norm(x)", "self.norm = Mean()"),
        ("self.norm(x)", "self.norm = Shift(8)"),
        ("self.rope(x)", "self.rope = initialize('fast', 8)"),
        ("self.rope(x)", "self.rope = initialize('slow', 8)"),
        ("self.rope(x)", "self.rope = nn.RoPE(8)"),
    ],
)
def test_a_result_of_another_file_has_the_shape_and_dtype_that_mlx_gives_it(
    tmp_path: Path, body: str, init: str
) -> None:
    fact, result = judged(tmp_path, body, init=init)
    assert fact.kind == "array"
    assert (fact.dtype.name or "").rstrip("_") == str(result.dtype).removeprefix("mlx.core.")
    assert fact.shape.lead is None
    sizes = [d.value() for d in fact.shape.dims]
    assert all(s is None or s == n for s, n in zip(sizes, result.shape, strict=True))
    assert any("base.py:" in str(p) for p in fact.places) or (body.startswith("self.rope(x)") and "nn.RoPE" in init)


@pytest.mark.parametrize("init", ["self.norm = RMSNorm(8)", "self.norm = base.RMSNorm(dims=8, eps=1e-6)"])
def test_the_weight_of_an_imported_norm_has_a_dtype_of_its_own(tmp_path: Path, init: str) -> None:
    fact, _ = judged(tmp_path, "self.norm(x)", init=init)
    assert fact.dtype == {"bfloat16", "self.norm.weight.dtype"}
    assert str(fact.shape) == "(2, 3, 8)"


def test_the_layers_of_an_imported_module_are_made_with_its_arguments(tmp_path: Path) -> None:
    fact, result = judged(tmp_path, "self.up(x)", init="self.up = Up(8, factor=3)")
    assert str(fact.shape) == "(2, 3, 24)" and result.shape == (2, 3, 24)
    assert fact.dtype == {"bfloat16", "self.up.proj.weight.dtype"}


def test_a_mask_that_may_be_several_things_says_what(tmp_path: Path) -> None:
    package = write(tmp_path, {"base.py": BASE, "user.py": USER + "def f(x, full):\n    return create(x, full)\n"})
    at = graph(package / "user.py", "f")
    fact = at.facts.of(returned(at))
    assert fact.kind == "unknown" and not fact.present
    assert [(o.kind, o.dtype.name) for o in fact.options] == [("none", None), ("array", "bool_"), ("str", None)]


@pytest.mark.parametrize(
    ("other", "call"),
    [
        ("def g(x):\n    yield x\n", "g(x)"),
        ("async def g(x):\n    return x\n", "g(x)"),
        ("@cached\ndef g(x):\n    return mx.ones((3,))\n", "g(x)"),
        ("def g(x):\n    return mx.ones((3,))\n\n\ndef g(x):\n    return x\n", "g(x)"),
        ("def g(x, y):\n    return mx.ones((3,))\n", "g(x)"),
        ("def g(x):\n    return mx.ones((3,))\n", "g(*x)"),
        ("def g(x):\n    return h(x)\n\n\ndef h(x):\n    return g(x)\n", "g(x)"),
        ("def g(x):\n    return g(x[1:])\n", "g(x)"),
        ("def g(x:\n", "g(x)"),
    ],
)
def test_nothing_is_known_where_a_call_cannot_be_followed(tmp_path: Path, other: str, call: str) -> None:
    user = f"from .other import g\n\n\ndef f(x):\n    return {call}\n"
    package = write(tmp_path, {"other.py": other, "user.py": user})
    at = graph(package / "user.py", "f")
    assert at.facts.of(returned(at)).kind == "unknown"


def test_chains_of_calls_are_followed_to_a_depth(tmp_path: Path) -> None:
    for depth in (DEEPEST, DEEPEST + 1):
        steps = [f"@mx.compile\ndef g{i}(x):\n    return g{i + 1}(x)\n\n\n" for i in range(1, depth)]
        other = "".join(steps) + f"@mx.compile\ndef g{depth}(x):\n    return mx.ones((3,))\n"
        package = write(
            tmp_path, {"other.py": other, "user.py": "from .other import g1\n\n\ndef f(x):\n    return g1(x)\n"}
        )
        at = graph(package / "user.py", "f")
        assert (at.facts.rank(returned(at)) is not None) is (depth == DEEPEST)


CONFIG = """EPS = 1e-5
HEADS = 4


@dataclass
class Base:
    width: int = 64
    kind: str = "x"


@dataclass
class Config(Base):
    heads: int = 8
    head_dim: int | None = None
    other: int | None = None
    name: str = ""
    gate: bool | str = True

    def __post_init__(self):
        if self.gate is True:
            self.gate = "each"
        if self.head_dim is None:
            self.head_dim = self.width // self.heads
        if self.kind == "y":
            self.other = 3

    @property
    def inner(self):
        return self.heads * self.head_dim


@dataclass
class Whole:
    text: Config
    vision: Config | None = None
"""


@pytest.mark.parametrize(
    ("expression", "value", "named"),
    [
        ("config.width", 64, {"width"}),
        ("config.head_dim", 8, {"width", "heads", "head_dim"}),
        ("config.head_dim or 3", 8, {"width", "heads", "head_dim"}),
        ("config.other or config.width // 2", 32, {"width"}),
        ("config.inner", 64, {"width", "heads", "head_dim"}),
        ("getattr(config, 'heads', 3)", 8, {"heads"}),
        ("getattr(config, 'absent', 3 * config.heads)", 24, {"heads"}),
        ("config.width if hasattr(config, 'width') else 1", 64, {"width"}),
        ("2 if config.name == '' else 3", 2, {"name"}),
        ("config.heads if config.gate == 'each' else config.width", 8, {"heads", "gate"}),
        ("2 if config.name is not True else 3", 2, {"name"}),
        ("whole.text.heads", 8, {"heads"}),
        ("whole.vision.width // whole.vision.heads", 8, {"width", "heads"}),
        ("int(config.width * 0.5)", 32, {"width"}),
        ("max(config.heads, config.width)", 64, {"width", "heads"}),
        ("HEADS * config.heads", 32, {"heads"}),
        ("cfg.HEADS", 4, set()),
    ],
)
def test_defaults_make_sizes_numbers_and_say_which_they_are(
    tmp_path: Path, expression: str, value: int, named: set[str]
) -> None:
    user = (
        "from . import config as cfg\nfrom .config import HEADS, Config, Whole\n\n\n"
        "class Block(nn.Module):\n    def __init__(self, config: Config, whole: 'Whole'):\n        super().__init__()\n"
        f"        self.n = {expression}\n\n    def __call__(self, x):\n        return x.reshape(-1, self.n)\n"
    )
    package = write(tmp_path, {"config.py": CONFIG, "user.py": user})
    at = graph(package / "user.py", "Block.__call__")
    shape = at.usual.shape(returned(at))
    assert shape is not None
    number, rests = at.usual.usual(shape.axis(-1))
    assert number == value
    assert {r.name for r in rests} <= named
    assert all(str(r.place).rpartition(":")[0].endswith("config.py") for r in rests)
    proven = at.facts.shape(returned(at))
    assert proven is not None
    assert (proven.axis(-1) == value) is (not named), "a default proves nothing, a constant does"


def test_what_an_object_is_made_with_beats_its_defaults(tmp_path: Path) -> None:
    made = "c = Config(32, heads=2)"
    user = f"from .config import Config\n\n\ndef f(x):\n    {made}\n    return x.reshape(-1, c.width // c.heads)\n"
    package = write(tmp_path, {"config.py": CONFIG, "user.py": user})
    at = graph(package / "user.py", "f")
    shape = at.facts.shape(returned(at))
    assert shape is not None and shape.axis(-1) == 16


def test_a_constant_of_another_module_is_one_and_says_where_it_stands(tmp_path: Path) -> None:
    user = "from .config import EPS\n\n\ndef f(x):\n    return x + EPS\n"
    package = write(tmp_path, {"config.py": CONFIG, "user.py": user})
    at = graph(package / "user.py", "f")
    added = returned(at).inputs[1]
    assert at.facts.const(added) == 1e-5
    assert "config.py:8" in at.facts.why(added)


def test_an_attribute_that_a_method_assigns_is_not_what_init_assigned(tmp_path: Path) -> None:
    user = (
        "class A(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.n, self.m = 3, 3\n\n"
        "    def grow(self):\n        self.n, _ = 4, 5\n\n"
        "    def __call__(self, x):\n        return x.reshape(self.m, self.n)\n"
    )
    package = write(tmp_path, {"user.py": user})
    at = graph(package / "user.py", "A.__call__")
    shape = at.facts.shape(returned(at))
    assert shape is not None and shape.dims[0] == 3 and shape.dims[1].value() is None


def test_attributes_of_a_base_in_another_file(tmp_path: Path) -> None:
    user = (
        "from .base import RMSNorm\n\n\nclass Own(RMSNorm):\n    def __init__(self, dims):\n"
        "        super().__init__(2 * dims, eps=0.5)\n\n"
        "    def __call__(self, x: mx.array):\n        return x * self.weight * self.eps\n"
    )
    package = write(tmp_path, {"base.py": BASE, "user.py": user})
    at = graph(package / "user.py", "Own.__call__")
    reads = {n.attrs["name"]: n for n in at.nodes if n.op == "attr"}
    assert at.facts.const(reads["eps"]) == 0.5
    assert at.facts.rank(reads["weight"]) == 1 and at.facts.dtype(reads["weight"]) == {"self.weight.dtype"}
    assert any("base.py" in str(p) for p in at.facts.of(reads["weight"]).places)


def test_an_object_of_which_only_an_annotation_is_known_is_not_entered(tmp_path: Path) -> None:
    user = "from .base import RMSNorm\n\n\ndef f(x, norm: RMSNorm):\n    return norm(x) * norm.eps\n"
    package = write(tmp_path, {"base.py": BASE, "user.py": user})
    at = graph(package / "user.py", "f")
    product = returned(at)
    assert all(at.facts.const(n) is MISSING for n in product.inputs)
    assert at.facts.shape(product.inputs[0]) is None or at.facts.shape(product.inputs[0]).rank is None


def test_a_value_that_needs_itself_ends(tmp_path: Path) -> None:
    user = (
        "from .base import RMSNorm\n\n\nclass A(RMSNorm):\n    def __init__(self, n):\n        super().__init__(n)\n"
        "        self.first = 0\n        for _ in range(n):\n            self.first = self.first + self.last()\n\n"
        "    def last(self):\n        return self.first\n\n    def __call__(self, x):\n        return x + self.first\n"
    )
    package = write(tmp_path, {"base.py": BASE, "user.py": user})
    at = graph(package / "user.py", "A.__call__")
    assert at.facts.const(returned(at).inputs[1]) is MISSING


def test_facts_do_not_depend_on_which_file_came_first(tmp_path: Path) -> None:
    """Functions that need each other in a circle, across two files."""
    a = (
        "from .b import g\n\n\ndef f(x, n=3):\n    return g(x) if n else mx.ones((4,))\n\n\n"
        "def a(x):\n    return f(x, 0)\n"
    )
    b = "from .a import f\n\n\ndef g(x):\n    return f(x, 0)\n\n\ndef b(x):\n    return g(x)\n"
    package = write(tmp_path, {"a.py": a, "b.py": b})

    def seen(order: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
        modules = Modules()
        out = {}
        for name, function in order:
            at = graph(package / name, function, modules)
            out[name, function] = at.facts.why(returned(at))
        return out

    order = [("a.py", "f"), ("a.py", "a"), ("b.py", "g"), ("b.py", "b")]
    assert seen(order) == seen(order[::-1])


def test_usual_facts_leave_the_proven_ones_alone(tmp_path: Path) -> None:
    user = (
        "from .config import Config\n\n\nclass A(nn.Module):\n    def __init__(self, c: Config, n: int = 5):\n"
        "        super().__init__()\n        self.n, self.m = n, c.heads\n\n"
        "    def __call__(self, x):\n        return x.reshape(self.n, self.m)\n"
    )
    package = write(tmp_path, {"config.py": CONFIG, "user.py": user})
    at = graph(package / "user.py", "A.__call__")
    assert [at.usual.usual(d)[0] for d in facts(at, True).shape(returned(at)).dims] == [5, 8]
    assert [d.value() for d in facts(at).shape(returned(at)).dims] == [None, None]


@pytest.mark.parametrize("call", ["layer(x, y)", "layer(x, y=y)"])
def test_a_layer_of_a_list_gets_its_arguments_in_their_places(tmp_path: Path, call: str) -> None:
    user = (
        "class Layer(nn.Module):\n    def __init__(self, dims):\n        super().__init__()\n"
        "        self.up = nn.Linear(dims, dims)\n\n    def __call__(self, x, y):\n        return self.up(x)\n\n\n"
        "class Model(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.layers = [Layer(8) for _ in range(n)]\n\n    def __call__(self):\n"
        "        x, y = mx.zeros((2, 3, 8)), mx.zeros((5,), mx.int32)\n"
        f"        for layer in self.layers:\n            out = {call}\n        return out\n"
    )
    at = graph(write(tmp_path, {"user.py": user}) / "user.py", "Model.__call__")
    (made,) = [n for n in at.nodes if n.op == "call" and n.attrs["target"] == "Layer.__call__"]
    assert str(at.facts.shape(made)).startswith("(2, 3, ")


def test_a_function_that_remembers_gives_what_it_returns(tmp_path: Path) -> None:
    window = "from functools import lru_cache\n\n\n@lru_cache(maxsize=None)\ndef window(n):\n    return mx.ones((n,))\n"
    package = write(
        tmp_path, {"base.py": window, "a.py": "from .base import window\n\n\ndef f(n):\n    return window(n)\n"}
    )
    of = graph(package / "a.py", "f")
    assert facts(of).dtype(returned(of)).name == "float32"


CONFIGURED = """
@dataclass
class Codec:
    scale: float = 8.0
    shift: float = 0.0
    mean: Any = None

    @classmethod
    def from_dict(cls, given):
        return cls(float(given["scale"]), float(given["shift"]))

    @classmethod
    def parts(cls, given):
        return cls(1.0), given


@dataclass
class Config:
    codec: Codec

    @classmethod
    def from_path(cls, path) -> "Config":
        return load(path)


class Pipeline:
    def __init__(self, path, config: Config | None = None):
        self.config = config or Config.from_path(path)
        self.codec = Codec.from_dict(path)
        self.parts = Codec.parts(path)

    def decode(self, x: mx.array):
        return RESULT
"""


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ("self.config.codec.scale", "scalar"),
        ("self.codec.shift", "scalar"),
        ("self.codec.mean", "unknown"),
        ("self.parts.scale", "unknown"),
    ],
)
def test_a_field_of_what_a_class_method_makes_is_what_it_is_annotated(tmp_path: Path, result: str, kind: str) -> None:
    package = write(tmp_path, {"a.py": "from typing import Any\n\n\n" + CONFIGURED.replace("RESULT", result)})
    of = graph(package / "a.py", "Pipeline.decode")
    assert facts(of).kind(returned(of)) == kind
