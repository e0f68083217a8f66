"""What the package's calls of a function say of its arguments' dtypes."""

from __future__ import annotations

from pathlib import Path

from graph.packages import graph, write

from fuselint.graph.callers import given_dtypes, is_given

OPERATIONS = """def split(mixes, scale):
    mixes = mixes.astype(mx.float32)
    return mx.sigmoid(mixes * scale.astype(mx.float32))


def choose(mixes, scale):
    return split(mixes, scale)
"""

LAYER = """from .operations import choose


class Layer(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.mix = mx.zeros((dims, 4), dtype=mx.float32)
        self.scale = mx.ones((4,), dtype=mx.float32)

    def project(self, z):
        return z @ self.mix

    def __call__(self, x):
        z = mx.fast.rms_norm(x.astype(mx.float32), None, 1e-5)
        return choose(self.project(z), self.scale)
"""


def test_a_weight_made_float32_is_that_in_other_files_too(tmp_path: Path) -> None:
    package = write(tmp_path, {"operations.py": OPERATIONS, "layer.py": LAYER})
    given = given_dtypes(graph(package / "operations.py", "split"))
    assert given == {"mixes.dtype": "float32", "scale.dtype": "float32"}


def test_a_weight_of_no_stated_dtype_has_the_models(tmp_path: Path) -> None:
    layer = LAYER.replace(", dtype=mx.float32", "")
    package = write(tmp_path, {"operations.py": OPERATIONS, "layer.py": layer})
    given = given_dtypes(graph(package / "operations.py", "split"))
    assert given["scale.dtype"] == "the model's dtype"


CHOSEN = """def pairs(x, y):
    return mx.tanh(x) * y


def halves(x, y):
    return mx.exp(x) * y


def f(x, paired):
    turn = halves if paired else pairs
    return turn(x.astype(mx.float32), mx.cos(mx.arange(4)))
"""


def test_one_of_two_functions_is_given_what_the_chosen_one_is_called_with(tmp_path: Path) -> None:
    package = write(tmp_path, {"a.py": CHOSEN})
    for name in ("pairs", "halves"):
        assert given_dtypes(graph(package / "a.py", name)) == {"x.dtype": "float32", "y.dtype": "float32"}


DENSE = """def dense(linear, coded):
    if coded:
        return mx.from_fp8(linear.weight, dtype=mx.float32) * linear.scale[:, None]
    return linear.weight


def merged(weight, delta):
    return mx.tanh(weight + delta)


def f(linear, coded, delta):
    return merged(dense(linear, coded), delta)
"""


def test_what_one_of_two_returns_says_is_not_the_dtype_of_both(tmp_path: Path) -> None:
    package = write(tmp_path, {"a.py": DENSE})
    assert "weight.dtype" not in given_dtypes(graph(package / "a.py", "merged"))


def test_what_both_returns_say_is_the_dtype(tmp_path: Path) -> None:
    package = write(
        tmp_path, {"a.py": DENSE.replace("return linear.weight", "return linear.weight.astype(mx.float32)")}
    )
    assert given_dtypes(graph(package / "a.py", "merged"))["weight.dtype"] == "float32"


ROTATING = """class Base(nn.Module):
    def __call__(self, x, positions=None):
        return x if positions is None else x + positions


class Layer(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.attention = Base()

    def __call__(self, x, positions=None):
        return self.attention(x, positions=positions)


class Model(nn.Module):
    def __init__(self, dims, count):
        super().__init__()
        self.layers = [Layer(dims) for _ in range(count)]

    def __call__(self, x, **more):
        for layer in self.layers:
            x = layer(x, positions=more.get("positions"))
        return x
"""

OWN = """from .layers import Base


class Attention(Base):
    def __call__(self, x, positions=None):
        return x if positions is None else x * positions
"""


def is_given_positions(package: Path) -> bool:
    own = graph(package / "own.py", "Attention.__call__")
    return is_given(own, own.params["positions"])


def test_an_argument_is_given_through_layers_and_where_a_base_class_is_called(tmp_path: Path) -> None:
    assert is_given_positions(write(tmp_path, {"layers.py": ROTATING, "own.py": OWN}))


def test_an_argument_that_is_handed_on_and_left_out_is_not_given(tmp_path: Path) -> None:
    layers = ROTATING.replace(', positions=more.get("positions")', "")
    assert not is_given_positions(write(tmp_path, {"layers.py": layers, "own.py": OWN}))


TABLES = """from .a import inner


def tables(n):
    angles = mx.arange(n)[:, None] * mx.array([1.0, 0.5])
    return mx.cos(angles), mx.sin(angles)


def outer(x):
    return inner(x.astype(mx.bfloat16), tables(x.shape[0]))
"""

SPREAD = """def turn(x, cos, sin):
    return x * cos + mx.flip(x, axis=-1) * sin


def inner(x, rope):
    return turn(x, *rope)
"""


def test_a_tuple_that_is_spread_gives_each_parameter_its_element(tmp_path: Path) -> None:
    package = write(tmp_path, {"a.py": SPREAD, "b.py": TABLES})
    given = given_dtypes(graph(package / "a.py", "turn"))
    assert given["cos.dtype"] == given["sin.dtype"] == "float32"
