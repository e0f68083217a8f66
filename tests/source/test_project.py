from __future__ import annotations

import ast
import pickle
import textwrap

import mlx.core as mx
import pytest

from fuselint.source.project import MISSING, ModuleSummary, summarise
from fuselint.source.text import FileText


def summary(text: str) -> ModuleSummary:
    file = FileText("m.py", textwrap.dedent(text))
    return summarise(file, ast.parse(file.text))


# -- imports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name", "target"),
    [
        ("import mlx.core as mx", "mx.softmax", "mlx.core.softmax"),
        ("import mlx.core", "mlx.core.fast.rope", "mlx.core.fast.rope"),
        ("import mlx.core, mlx.nn as nn", "nn.silu", "mlx.nn.silu"),
        ("from mlx import core as mx, nn", "nn.Linear", "mlx.nn.Linear"),
        ("from mlx.core import fast", "fast.rms_norm", "mlx.core.fast.rms_norm"),
        ("import mlx.core.fast as F", "F.rms_norm", "mlx.core.fast.rms_norm"),
        (
            "from mlx.core.fast import scaled_dot_product_attention as sdpa",
            "sdpa",
            "mlx.core.fast.scaled_dot_product_attention",
        ),
        ("from mlx.nn.layers.activations import silu", "silu", "mlx.nn.silu"),
        ("import mlx.nn.layers.normalization as n", "n.RMSNorm", "mlx.nn.RMSNorm"),
        ("from mlx.nn.layers import Linear", "Linear", "mlx.nn.Linear"),
        ("import mlx.nn as nn", "nn.layers.linear.Linear", "mlx.nn.Linear"),
        ("import mlx.nn as nn", "nn.losses.cross_entropy", "mlx.nn.losses.cross_entropy"),
        ("from .base import scale", "scale", ".base.scale"),
        ("from . import base", "base.scale", ".base.scale"),
        ("from ..a.b import c as d", "d.e", "..a.b.c.e"),
        ("try:\n    import mlx.core as mx\nexcept ImportError:\n    mx = None", "mx.exp", "mlx.core.exp"),
        ("if 1:\n    import mlx.core as mx\nelse:\n    from mlx import core as mx", "mx.exp", "mlx.core.exp"),
        ("import mlx.core as mx\nF = mx.fast", "F.rope", "mlx.core.fast.rope"),
        ("import mlx.core as mx\nsdpa = mx.fast.rope\nother = sdpa", "other", "mlx.core.fast.rope"),
        ("import mlx.nn as nn\nSwish = nn.SiLU", "Swish", "mlx.nn.SiLU"),
        ("import mlx.core as mx\nDTYPE: mx.Dtype = mx.float32", "DTYPE", "mlx.core.float32"),
        ("import mlx.core as mx", "nothing", None),
        ("import mlx.core as mx", "softmax", None),
    ],
)
def test_a_name_resolves_however_it_was_imported(line: str, name: str, target: str | None) -> None:
    assert summary(line + "\n").resolve(name) == target
    assert summary(line + "\ndef f(x): pass\n").resolve(name, "f") == target


@pytest.mark.parametrize(
    "rebinding",
    [
        "mx = load()",
        "import numpy as mx",
        "def mx(): pass",
        "class mx: pass",
        "for mx in range(3): pass",
        "with open(p) as mx: pass",
        "try: pass\nexcept E as mx: pass",
        "mx += 1",
        "(mx := 3)",
        "a, *mx = 1, 2",
        "def f():\n    global mx\n    mx = load()",
        "match p:\n    case {'a': mx}: pass",
        "match p:\n    case [*mx]: pass",
        "match p:\n    case {**mx}: pass",
        "del mx",
    ],
)
def test_a_module_level_name_that_is_bound_twice_resolves_to_nothing(rebinding: str) -> None:
    assert summary(f"import mlx.core as mx\n{rebinding}\n").resolve("mx.exp") is None


@pytest.mark.parametrize(
    "function",
    [
        "def f(mx): pass",
        "def f(*mx): pass",
        "def f(**mx): pass",
        "def f(*, mx=1): pass",
        "def f(mx, /): pass",
        "def f(x):\n    mx = x",
        "def f(x):\n    for mx in x: pass",
        "def f(x):\n    if (mx := x): pass",
        "def f(x):\n    import numpy as mx\n    mx = x",
        "def f(x):\n    def mx(): pass\n    mx = x",
        "def f(x):\n    return [mx for mx in x]",
        "def f(x):\n    return lambda mx: mx",
        "f = lambda mx: mx",
    ],
)
def test_a_name_that_the_function_binds_itself_resolves_to_nothing(function: str) -> None:
    module = summary(f"import mlx.core as mx\n{function}\n")
    assert module.resolve("mx.exp", "f") is None
    assert module.resolve("mx.exp") == "mlx.core.exp"


def test_imports_inside_functions_hold_there_and_further_in() -> None:
    module = summary(
        """
        import numpy as mx
        def f(x):
            import mlx.core as mx
            from mlx.core import fast
            def g(y):
                return mx.exp(y)
            return g(x)
        class A:
            def mx(self): pass
            def m(self, x):
                return mx.exp(x)
        """
    )
    assert module.function_imports == {"f": {"mx": "mlx.core", "fast": "mlx.core.fast"}}
    assert module.resolve("mx.exp", "f") == "mlx.core.exp"
    assert module.resolve("mx.exp", "f.<locals>.g") == "mlx.core.exp"
    assert module.resolve("mx.exp", "A.m") == "numpy.exp"
    assert module.resolve("fast.rope") is None


def test_functions_and_classes_of_the_file_resolve_to_their_qualnames() -> None:
    module = summary(
        """
        def helper(x): return x
        class A:
            def m(self):
                def inner(y): return y
                class B:
                    def n(self): pass
                return inner
        def shadow(helper): return helper
        if c:
            def twice(x): return x
        else:
            def twice(x): return -x
        """
    )
    assert module.resolve("helper", "A.m") == "helper"
    assert module.resolve("inner", "A.m") == "A.m.<locals>.inner"
    assert module.resolve("inner", "A.m.<locals>.inner") == "A.m.<locals>.inner"
    assert module.resolve("inner") is None
    assert module.resolve("B", "A.m") == "A.m.<locals>.B"
    assert module.resolve("A.m") == "A.m"
    assert module.resolve("helper", "shadow") is None
    assert module.resolve("twice") is None
    assert module.functions["twice"].redefined
    assert module.functions["A.m.<locals>.B.n"].class_name == "A.m.<locals>.B"


def test_a_star_import_of_mlx_gives_the_names_that_nothing_else_binds() -> None:
    text = "from mlx.core import *\nlocal = g()\ndef f(tanh): pass\n"
    module = summary(text)
    assert module.resolve("softmax") == "mlx.core.softmax"
    assert module.resolve("fast.rope", "f") == "mlx.core.fast.rope"
    assert module.resolve("sum") == "mlx.core.sum"
    assert [module.resolve(n) for n in ("len", "local")] == [None, None]
    assert module.resolve("tanh", "f") is None
    assert summary(text + "from .x import *\n").resolve("softmax") == "*.softmax", "of the last module that has it"
    assert summary("from numpy import *\n").resolve("exp") == "*.exp"


# -- classes ----------------------------------------------------------------------------------------------------------


def test_classes_know_their_bases_methods_and_whether_they_are_modules() -> None:
    module = summary(
        """
        import mlx.nn as nn
        from mlx.nn import Module
        from .base import Base
        from typing import Generic
        class A(nn.Module):
            def __call__(self, x): return x
            forward = __call__
            act = lambda self, x: x
        class B(A, Generic[T]):
            def extra(self): pass
        class C(Base): pass
        class D(nn.Linear): pass
        class E(Module): pass
        class F: pass
        """
    )
    assert {n for n, c in module.classes.items() if c.is_module} == {"A", "B", "D", "E"}
    assert module.classes["B"].bases == ("A", "typing.Generic")
    assert module.lineage("B") == ("B", "A", "typing.Generic", "mlx.nn.Module")
    assert module.classes["C"].bases == (".base.Base",)
    assert module.method("B", "forward") == "A.__call__"
    assert module.method("B", "act") == "A.act"
    assert module.method("B", "extra") == "B.extra"
    assert module.method("B", "missing") is None


def test_classes_that_inherit_from_each_other_end() -> None:
    module = summary("class A(B): pass\nclass B(A): pass\n")
    assert module.lineage("A") == ("A", "B")


def test_dataclass_fields_have_annotations_and_defaults() -> None:
    module = summary(
        """
        import mlx.core as mx
        from dataclasses import dataclass, field
        from typing import Optional, Dict
        DIM = 64
        @dataclass
        class Args(Base):
            hidden: int
            heads: int = 8
            eps: float = 1e-5
            head_dim: Optional[int] = None
            dims: "Dict[str, mx.array]" = field(default_factory=dict)
            size: int | None = field(default=2 * DIM)
            model_type = "llama"
        @dataclass(frozen=True)
        class More: pass
        """
    )
    fields = module.classes["Args"].fields
    assert module.classes["Args"].is_dataclass
    assert module.classes["More"].is_dataclass
    assert {n: f.default for n, f in fields.items()} == {
        "hidden": MISSING,
        "heads": 8,
        "eps": 1e-5,
        "head_dim": None,
        "dims": MISSING,
        "size": 128,
        "model_type": "llama",
    }
    assert fields["head_dim"].annotation == "typing.Optional[int]"
    assert fields["dims"].annotation == "typing.Dict[str, mlx.core.array]"
    assert fields["size"].annotation == "int | None"


def test_attributes_know_the_class_that_init_makes() -> None:
    module = summary(
        """
        import mlx.nn as nn
        class Norm(nn.Module): pass
        class A(nn.Module):
            def __init__(self, n):
                self.norm = Norm(n)
                self.proj = nn.Linear(n, n)
                self.layers = [Norm(n) for _ in range(3)]
                self.pair = (Norm(1), Norm(2))
                self.mixed = [Norm(1), nn.Linear(1, 1)]
                self.scale = n ** -0.5
                self.either = Norm(n)
                if n: self.either = nn.Identity()
                self.twice = Norm(1)
                self.twice = Norm(2)
                other.thing = Norm(n)
        """
    )
    assert module.classes["A"].attributes == {
        "norm": "Norm",
        "proj": "mlx.nn.Linear",
        "layers": "Norm[]",
        "pair": "Norm[]",
        "twice": "Norm",
    }


# -- functions and constants ------------------------------------------------------------------------------------------


def test_functions_know_their_parameters_and_kinds() -> None:
    module = summary(
        """
        import mlx.core as mx
        from typing import Optional
        EPS = 1e-5
        class A:
            @staticmethod
            def f(x: mx.array, /, y: Optional["mx.array"] = None, *a, eps: float = EPS, k=g(), **o) -> mx.array: pass
            @property
            def p(self): pass
            @classmethod
            async def c(cls): yield 1
            m = lambda self, x=-1: x
        """
    )
    f = module.functions["A.f"]
    assert (f.kind, f.returns, f.class_name) == ("staticmethod", "mlx.core.array", "A")
    assert [(p.name, p.kind, p.annotation, p.default, p.has_default) for p in f.parameters] == [
        ("x", "positional", "mlx.core.array", MISSING, False),
        ("y", "plain", "typing.Optional[mlx.core.array]", None, True),
        ("a", "*", None, MISSING, False),
        ("eps", "keyword", "float", 1e-5, True),
        ("k", "keyword", None, MISSING, True),
        ("o", "**", None, MISSING, False),
    ]
    assert [module.functions[f"A.{n}"].kind for n in "pcm"] == ["property", "classmethod", "lambda"]
    assert module.functions["A.c"].is_async
    assert module.functions["A.c"].is_generator
    assert module.functions["A.m"].parameters[1].default == -1


@pytest.mark.parametrize(
    "text", ["0.5", "3", "True", "[1, 2]", "[True, 2]", "[1, 2.0]", "[[1], [2]]", "-mx.inf", "1 / 6", "2, mx.bfloat16"]
)
def test_arrays_of_literals_have_the_shape_and_dtype_that_mlx_gives_them(text: str) -> None:
    found = summary(f"import mlx.core as mx\nA = mx.array({text})\n").arrays["A"]
    array = eval(f"mx.array({text})", {"mx": mx})
    assert found.shape == array.shape
    assert found.dtype.removesuffix("_") == str(array.dtype).removeprefix("mlx.core.")


@pytest.mark.parametrize(
    "text",
    ["A = mx.array(n)", "A = mx.array(2**40)", "A = mx.array([[1, 2], [3]])", "A = mx.array(1)\nA = mx.array(2.0)"],
)
def test_other_arrays_are_of_unknown_shape_and_dtype(text: str) -> None:
    assert not summary(f"import mlx.core as mx\n{text}\n").arrays


def test_constants_are_literals_that_are_bound_once() -> None:
    module = summary(
        """
        import math
        from math import sqrt
        A = 8
        B: float = -1.5
        C = A * 2 ** 0.5 + math.sqrt(2 / math.pi)
        D = (1, "x", None, True)
        E = float("-inf")
        F = sqrt(4)
        twice = 1
        twice = 2
        added = 1
        added += 1
        if A: maybe = 1
        else: maybe = 2
        changed = 1
        def f():
            global changed
            changed = 2
        call = g()
        huge = 10 ** 1000000
        zero = 1 / 0
        text = "a" * 10 ** 9
        items = [1, 2]
        heads, width = 16, 64
        again, again = 1, 2
        one, (two, three) = 1, (2, 3)
        first, *rest = 1, 2
        left, right = pair()
        """
    )
    assert module.constants == {
        "heads": 16,
        "width": 64,
        "one": 1,
        "two": 2,
        "three": 3,
        "A": 8,
        "B": -1.5,
        "C": 8 * 2**0.5 + (2 / 3.141592653589793) ** 0.5,
        "D": (1, "x", None, True),
        "E": float("-inf"),
        "F": 2.0,
    }


def test_names_and_attributes_are_counted_with_those_in_texts() -> None:
    module = summary(
        """
        from m import helper
        class A:
            def f(self):
                self.stored = 1
                self.stored += 1
                return self.read.twice + self.read + getattr(self, "by_name") + W["q_proj.weight"] + local
        """
    )
    counts = module.attribute_reads
    assert {n: counts[n] for n in ("stored", "read", "twice", "by_name", "q_proj", "weight")} == {
        "stored": 1,
        "read": 2,
        "twice": 1,
        "by_name": 1,
        "q_proj": 1,
        "weight": 1,
    }
    assert "local" not in counts
    assert "local" in module.names
    assert "helper" in module.names


def test_a_summary_crosses_processes() -> None:
    module = summary("import mlx.core as mx\nX = 1\ndef f(x, y=g()): return mx.exp(x)\nclass A(B):\n    a: int\n")
    again = pickle.loads(pickle.dumps(module))
    assert again == module
    assert again.functions["f"].parameters[0].default is MISSING


def test_a_summary_survives_deep_syntax() -> None:
    deep = " + ".join(["1"] * 2000)
    module = summary(
        f"X = {deep}\ndef f(x: {deep} = {deep}) -> {' | '.join(['A'] * 2000)}: pass\nclass A({deep}): pass\n"
    )
    assert module.constants == {}
    assert module.functions["f"].parameters[0].annotation == ""
