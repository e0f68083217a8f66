from __future__ import annotations

import sys
import textwrap
import warnings

import pytest

from fuselint.errors import UnreadableFile
from fuselint.source.screen import screen
from fuselint.source.text import FileText

HEAD = "import math\nimport numpy as np\nimport mlx.core as mx\nimport mlx.nn as nn\n"


def passing(text: str, head: str = HEAD) -> set[str]:
    return {span.qualname for span in screen(FileText("m.py", head + textwrap.dedent(text))).functions}


@pytest.mark.parametrize(
    "head",
    [
        "import mlx.core as mx",
        "import mlx",
        "import os, mlx.core as mx",
        "from mlx import core as mx",
        "from mlx.core import fast",
        "from mlx.nn import *",
        "try:\n    import mlx.core as mx\nexcept ImportError:\n    mx = None",
        "def g():\n    import mlx.core as mx",
        "if True:\n    pass\nelse:\n    from mlx import nn",
    ],
)
def test_a_file_that_imports_mlx_in_any_way_is_looked_at(head: str) -> None:
    found = screen(FileText("m.py", head + "\ndef f(x, y):\n    return x * y + x\n"))
    assert found.mlx
    assert [s.qualname for s in found.functions] == ["f"]


@pytest.mark.parametrize("head", ["", "# mlx\n", "import mlx_lm\n", "from .mlx import core\n", "x = 'import mlx'\n"])
def test_a_file_that_does_not_import_mlx_is_not(head: str) -> None:
    found = screen(FileText("m.py", head + "def f(x, y):\n    return x * y + x\n"))
    assert not found.mlx
    assert found.functions == []


@pytest.mark.parametrize(
    "body",
    [
        "return x * mx.rsqrt(y)",
        "return x @ y",
        "return mx.matmul(x, y)",
        "return mx.softmax(x)",
        "return x.softmax(-1)",
        "return x.mean(-1)",
        "return mx.fast.rms_norm(x, 1 + y, 1e-5)",
        "return mx.concatenate([mx.expand_dims(x, 2)] * 4, axis=2)",
        "x += y\n    x *= y\n    return x",
        "return [a - b + 1 for a, b in zip(x, y)]",
        "return nn.silu(x) * y",
        "return x.astype(mx.float32).astype(x.dtype)",
        "return -x + y",
        "return mx.where(x > y, x, 0)",
        "return f'{x}' if (z := x * y + 1) is None else z",
        "with s:\n        return x / (1 + y)",
        "return (lambda a: a * a + y)(x)",
        "match x:\n        case 1:\n            return x * x * y",
    ],
)
def test_a_function_that_may_hold_something_passes(body: str) -> None:
    assert passing(f"\ndef f(x, y):\n    {body}\n") == {"f"}


@pytest.mark.parametrize(
    "body",
    [
        "return x",
        "return x + y",
        "return self.layer(x)",
        "return x.shape[0] * x.shape[1] + len(y)",
        "return math.sqrt(x) if y else math.exp(x)",
        "return np.mean(np.exp(x))",
        "return 'a' + 'b' + 'c'",
        "print('%s' % x)",
        "if x is None and y is not None: return y",
        "return x.reshape(1, 2).transpose(0, 1)",
    ],
)
def test_a_function_that_holds_nothing_does_not(body: str) -> None:
    assert passing(f"\ndef f(x, y):\n    {body}\n") == set()


def test_the_work_of_helpers_counts_for_who_calls_them_and_init_for_nobody() -> None:
    text = """
    def double(x):
        return x * 2
    def add(x, y):
        return x + y
    class A(nn.Module):
        def __init__(self, x):
            self.scale = x * x + 1
        def _norm(self, x):
            return add(x, x)
        def __call__(self, x):
            return self._norm(double(x))
        def alone(self, x):
            return add(x, x)
    def outer(x):
        def inner(y):
            return y * y + y
        return inner(x)
    """
    assert passing(text) == {"A.__call__", "outer", "outer.<locals>.inner"}


def test_other_names_of_operations_are_seen() -> None:
    text = """
    from mlx.core.fast import scaled_dot_product_attention as sdpa
    from mlx.core import softmax as soft
    act = nn.silu
    class A(nn.Module):
        def __init__(self):
            self.activation = nn.SiLU()
        def gate(self, x, y):
            return self.activation(x) * y
    def a(q, k, v):
        return sdpa(q, k, v)
    def b(x):
        return soft(x)
    def c(x, y):
        return act(x) * y
    """
    assert passing(text) == {"A.gate", "a", "b", "c"}


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("import mlx\ndef f(:\n", 2, 7, "not valid Python: "),
        ("import mlx\nprint 'x'\n", 2, 1, "not valid Python: "),
        ("import mlx\nx = '\0'\n", 2, 6, "holds a null byte"),
        ("import mlx\nx = " + "(" * 2000 + ")" * 2000 + "\n", 2, None, "not valid Python: too many nested parentheses"),
        ("import mlx\nx = " + "-" * 100_000 + "1\n", 1, None, "nested too deeply"),
        ("import mlx\nif x:\n\ty = 1\n        z = 2\n", 4, None, "not valid Python: "),
    ],
    ids=["syntax", "python 2", "null", "parentheses", "signs", "tabs"],
)
def test_what_is_not_python_is_refused_with_its_place(text: str, line: int, column: int | None, reason: str) -> None:
    with pytest.raises(UnreadableFile) as caught:
        screen(FileText("m.py", text))
    assert caught.value.reason.startswith(reason)
    assert caught.value.line == line
    assert column is None or caught.value.column == column


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this interpreter knows the syntax")
def test_python_newer_than_the_interpreter_is_called_so() -> None:
    with pytest.raises(
        UnreadableFile, match=r"valid Python, but newer than the 3\.1[01] that fuselint runs under"
    ) as caught:
        screen(FileText("m.py", "import mlx\n\ndef f[T](x: T) -> T:\n    return x\n"))
    assert caught.value.line == 3


def test_the_users_doubtful_escapes_make_no_noise() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        screen(FileText("m.py", "import mlx\ns = '\\d'\nif s is 'x': pass\n"))


def test_a_thousand_operators_are_survived() -> None:
    found = screen(FileText("m.py", HEAD + "def f(x):\n    return " + " + ".join(["x"] * 1000) + "\n"))
    assert [(s.qualname, s.depth > 300) for s in found.functions] == [("f", True)]
