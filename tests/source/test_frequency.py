"""How often functions of a package run, and which findings are silent then."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.engine import check_paths
from fuselint.source.modules import Definition, Modules

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"
GATE = """
    class {name}(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.gate = nn.Linear(d, d)
            self.up = nn.Linear(d, d)

        def __call__(self, x):
            return nn.silu(self.gate(x)) * self.up(x)


"""
LAYERS = (
    GATE.format(name="MLP")
    + """
    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.norm = nn.RMSNorm(d)
            self.mlp = MLP(d)

        def __call__(self, x):
            return x + self.mlp(self.norm(x))
"""
)
PROJECTOR = GATE.format(name="Projector")
MODEL = """
    from .layers import Block
    from .projector import Projector


    class Model(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.layers = [Block(d) for _ in range(n)]
            self.projector = {made}

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.projected(x)

        def projected(self, x):
            {body}
"""
LOADER = "import importlib\ndef load(kind, d):\n    return importlib.import_module(kind).Model(d, 2)\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    write(folder, layers=LAYERS, projector=PROJECTOR, loader=LOADER)
    model(folder)
    return folder


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(text))


def model(folder: Path, made: str = "Projector(d)", body: str = "return self.projector(x)") -> None:
    write(folder, model=MODEL.format(made=made, body=body))


def how(folder: Path, name: str, qualname: str) -> str:
    path = str(folder / f"{name}.py")
    return Modules().frequencies(path).of(Definition(path, qualname)).how


def told(folder: Path, name: str, **settings: Any) -> tuple[list[str], int]:
    """The functions with findings in a file, and how many findings are silent."""
    (result,) = check_paths([str(folder / f"{name}.py")], Settings(**settings))
    assert not result.errors
    return [f.function for f in result.findings], result.idle


def test_what_a_model_holds_once_and_calls_once_is_silent(package: Path) -> None:
    assert how(package, "projector", "Projector.__call__") == "seldom"
    assert told(package, "projector") == ([], 1)


def test_what_a_layer_holds_is_reported(package: Path) -> None:
    assert how(package, "layers", "MLP.__call__") == "often"
    assert told(package, "layers") == (["MLP.__call__"], 0)


def test_who_says_that_it_is_hot_is_told_all(package: Path) -> None:
    assert told(package, "projector", hot=("*",)) == (["Projector.__call__"], 0)


@pytest.mark.parametrize(
    ("made", "body"),
    [
        ("[Projector(d) for _ in range(3)]", "return self.projector[0](x)"),
        ("[Projector(d), Projector(d)]", "return self.projector[0](x)"),
        ("Projector(d)", "for i in range(9):\n                x = self.projector(x)\n            return x"),
        ("Projector(d)", "return helper(self.projector, x)"),
        ("make(Projector, d)", "return self.projector(x)"),
    ],
)
def test_many_objects_loops_and_what_is_not_known_run_often(package: Path, made: str, body: str) -> None:
    model(package, made, body)
    assert how(package, "projector", "Projector.__call__") == "often"


def test_the_same_class_in_a_layer_too_runs_often(package: Path) -> None:
    write(
        package,
        layers=PROJECTOR + LAYERS.replace("MLP(d)", "Projector(d)"),
        projector="from .layers import Projector\n",
    )
    assert how(package, "layers", "Projector.__call__") == "often"


def test_a_helper_is_as_rare_as_its_callers(package: Path) -> None:
    write(package, helpers="def cap(x):\n    return mx.tanh(x / 30.0) * 30.0\n")
    model(package, body="from .helpers import cap\n            return cap(self.projector(x))")
    assert how(package, "helpers", "cap") == "seldom"
    write(package, user="from .helpers import cap\ndef run(xs):\n    return [cap(x) for x in xs]\n")
    assert how(package, "helpers", "cap") == "often"


def test_beside_each_pass_of_a_loop_that_generates(package: Path) -> None:
    text = """
        from .model import Model


        def mix(a, b):
            return mx.tanh(a) * b + mx.sigmoid(b)


        def sample(model: Model, x, n):
            for _ in range(n):
                x = mix(model(x), x)
            return x


        def recur(cell, x, n):
            for _ in range(n):
                x = other(cell(x), x)
            return x


        def other(a, b):
            return mx.tanh(a) * b + mx.sigmoid(b)
    """
    write(package, sampling=text, user="from .sampling import sample, recur\n")
    assert how(package, "sampling", "mix") == "seldom"
    assert how(package, "sampling", "other") == "often"


def test_logits_are_reported_once_a_pass_too(package: Path) -> None:
    text = """
        from .model import Model


        class LM(nn.Module):
            def __init__(self, d, n, vocab_size: int):
                super().__init__()
                self.model = Model(d, n)
                self.head = nn.Linear(d, {width})

            def __call__(self, x):
                out = self.head(self.model(x))
                return mx.tanh(out / 30.0) * 30.0
    """
    write(package, lm=text.format(width="vocab_size"), user="from .lm import LM\n")
    assert told(package, "lm") == (["LM.__call__"], 0)
    write(package, lm=text.format(width="d"))
    assert told(package, "lm") == ([], 1)


@pytest.mark.parametrize("cap", ["30.0", "self.cap"])
def test_logits_by_the_embedding_or_a_head_of_its_own_are_reported(package: Path, cap: str) -> None:
    text = f"""
        from .model import Model


        class LM(nn.Module):
            def __init__(self, args):
                super().__init__()
                self.model = Model(args.d, args.n)
                self.words = nn.Embedding(args.vocab_size, args.d)
                self.tied, self.cap = args.tied, args.cap
                if not args.tied:
                    self.head = nn.Linear(args.d, args.vocab_size)

            def __call__(self, x):
                out = self.model(x)
                if self.tied:
                    out = self.words.as_linear(out)
                else:
                    out = self.head(out)
                return mx.tanh(out / {cap}) * {cap}
    """
    write(package, lm=text, user="from .lm import LM\n")
    assert told(package, "lm") == (["LM.__call__"], 0)


@pytest.mark.parametrize(
    ("shape", "settings", "count"),
    [
        ("-1, 1024", {}, 1),  # nobody knows how many rows
        ("4, 8, 64", {}, 0),  # 2,048 numbers, once a pass
        ("4, 8, 64", {"hot": ("*",)}, 1),
        ("4, 8, 64", {"phase": "decode"}, 1),
        ("4, 2048, 1024", {}, 1),
    ],
)
def test_big_savings_are_reported_once_a_pass_too(
    package: Path, shape: str, settings: dict[str, Any], count: int
) -> None:
    norm = "x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + 1e-5) * self.layers[0].norm.weight"
    model(package, body=f"x = x.reshape({shape})\n            return {norm}")
    assert told(package, "model", select=("FUS2",), **settings) == (["Model.projected"] * count, 1 - count)


COPIES = """
    class Attention(nn.Module):
        def __call__(self, q: mx.array, k: mx.array, v: mx.array):
            q, k, v = (x.reshape(1, {tokens}, -1, 64).swapaxes(1, 2) for x in (q, k, v))
            k, v = mx.repeat(k, 4, axis=1), mx.repeat(v, 4, axis=1)
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125)


    def run(x: mx.array):
        return Attention()(x.reshape(1, {tokens}, 512), x.reshape(1, {tokens}, 128), x.reshape(1, {tokens}, 128))
"""


@pytest.mark.parametrize(("tokens", "count"), [(3, 0), (300, 1)])
def test_copied_keys_of_few_tokens_are_silent(package: Path, tokens: int, count: int) -> None:
    write(package, attention=COPIES.format(tokens=tokens), user="from .attention import Attention, run\n")
    assert told(package, "attention", select=("FUS101",)) == (["Attention.__call__"] * count, 1 - count)


NORMS = """
    @mx.compile
    def unit(x: mx.array):
        x = {half}
        return x * mx.rsqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


    class Layer(nn.Module):
        def __call__(self, x: mx.array):
            return unit(x)
"""


@pytest.mark.parametrize(
    ("half", "settings", "count"),
    [
        ("x[..., 64:]", {}, 0),  # copied first: as many launches as before
        ("x[..., 64:]", {"hot": ("*",)}, 1),
        ("x[..., 64:]", {"phase": "train"}, 1),
        ("x[..., :64].reshape(2048, 32, 64)", {}, 1),  # a launch less
        ("x.reshape(2048, 32, 1024)[..., 512:]", {}, 1),  # 134 MB in float32
    ],
)
def test_bytes_alone_are_reported_where_they_are_many(
    package: Path, half: str, settings: dict[str, Any], count: int
) -> None:
    write(package, norms=NORMS.format(half=half), user="from .norms import Layer, unit\n")
    assert told(package, "norms", select=("FUS203",), **settings) == (["unit"] * count, 1 - count)


CACHE = """
    class Cache:
        def __init__(self):
            self.keys = None
            self.values = None

        def update(self, keys: mx.array, values: mx.array):
            if self.keys is None:
                self.keys, self.values = keys, values
            else:
                self.keys = mx.concatenate([self.keys, keys], axis=2)
                self.values = mx.concatenate([self.values, values], axis=2)
            return self.keys, self.values
"""
CACHED = """
    from .caches import Cache

    class Layer(nn.Module):
        def __call__(self, x: mx.array, cache):
            keys, values = cache.update(x, x)
            return mx.fast.scaled_dot_product_attention(x, keys, values, scale=1.0)


    class Model(nn.Module):
        def __init__(self, n: int):
            super().__init__()
            self.layers = [Layer() for _ in range(n)]

        def __call__(self, x: mx.array, caches=None):
            if caches is None:
                caches = [None] * len(self.layers)
                {made}
            for layer, cache in zip(self.layers, caches):
                x = layer(x, cache)
            return x
"""


@pytest.mark.parametrize(
    ("made", "count"),
    [
        ("caches[-1] = Cache()", 0),
        ("caches[0] = Cache()", 0),
        ("caches = [Cache() for _ in self.layers]", 1),
        ("caches[:] = [Cache(), Cache()]", 1),
        ("caches[-1] = Cache()\n                caches = caches[-1:] + [Cache()]", 1),
        ("caches[-1] = Cache()\n                caches = [c or k() for c, k in zip(caches, [Cache] * 2)]", 1),
        ("for i in range(2):\n                    caches[i] = Cache()", 1),
    ],
)
def test_the_cache_of_one_layer_is_silent(package: Path, made: str, count: int) -> None:
    write(package, caches=CACHE, cached=CACHED.format(made=made), user="from .cached import Model\n")
    assert told(package, "caches", select=("FUS109",)) == (["Cache.update"] * count, 1 - count)


@pytest.mark.parametrize(
    ("user", "count"),
    [
        ("KINDS = [Cache]\n", 1),
        ("ONE = Cache()\n", 1),
        ("def f(n):\n    make = lambda: Cache()\n    return [make() for _ in range(n)]\n", 1),
        ("class Other(Cache):\n    pass\n", 1),
        ("def f(c: Cache):\n    return isinstance(c, Cache)\n", 0),
    ],
)
def test_a_cache_of_one_layer_is_made_nowhere_else(package: Path, user: str, count: int) -> None:
    cached = CACHED.format(made="caches[-1] = Cache()")
    write(package, caches=CACHE, cached=cached, user=f"from .caches import Cache\nfrom .cached import Model\n{user}")
    assert told(package, "caches", select=("FUS109",)) == (["Cache.update"] * count, 1 - count)


def test_a_cache_that_the_package_never_makes_is_reported(package: Path) -> None:
    write(package, caches=CACHE, user="from .caches import Cache\n")
    assert told(package, "caches", select=("FUS109",)) == (["Cache.update"], 0)


FILE = """import other


class Net(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.{layers}
        self.head = nn.Linear(d, d)

    def __call__(self, x: mx.array, y: mx.array):
        for layer in self.layers:
            x = layer(x)
            x = mx.tanh(self.head(x)) * 2 * y + x
        return mx.tanh(self.head(x)) * 2 * y + x

    def encode(self, x: mx.array, y: mx.array):
        return mx.tanh(self.head(x)) * 2 * y + x
"""


@pytest.mark.parametrize(
    ("layers", "lines"),
    [
        ("layers = [other.Layer(d) for _ in range(n)]", [17]),  # once a round of the loop; what is beside it, once
        ("layers = [nn.Conv1d(d, d, 3) for _ in range(n)]", [17, 18, 21]),  # no layers of a model
        ("layers = other.Layers(d, n)", [17, 18, 21]),
    ],
)
def test_a_file_by_itself(tmp_path: Path, layers: str, lines: list[int]) -> None:
    write(tmp_path, net=FILE.format(layers=layers))
    (result,) = check_paths([str(tmp_path / "net.py")], Settings(select=("FUS301",)))
    assert [f.line for f in result.findings] == lines
    assert result.idle == 3 - len(lines)


MASK = """
    from .model import Model


    def mask(n: int):
        return mx.where(mx.arange(n)[:, None] >= mx.arange(n), 0.0, -mx.inf)


    class Words(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.table = nn.Embedding(n, d)

        def __call__(self, x):
            return self.table(x)


    class LM(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.model = Model(d, n)
            self.words = {words}

        def __call__(self, x):
            x = self.words(x)
            {before}
            for _ in range(9):
                {inside}
                x = mx.fast.scaled_dot_product_attention(x, x, x, scale=1.0, mask=m)
            return x
"""


@pytest.mark.parametrize(
    ("before", "inside", "words", "functions"),
    [
        ("m = mask(4096)", "pass", "nn.Embedding(n, d)", ["mask"]),  # the attention of every layer reads it
        ("m = mask(4096)", "pass", "Words(d, n)", ["mask"]),
        ("m = mask(4096)", "pass", "nn.Linear(d, d)", []),
        ("pass", "m = mask(4096)", "nn.Linear(d, d)", ["mask"]),
    ],
)
def test_a_mask_that_is_built_once_a_pass_is_told_of_where_a_prompt_is_embedded(
    package: Path, before: str, inside: str, words: str, functions: list[str]
) -> None:
    write(package, lm=MASK.format(before=before, inside=inside, words=words), user="from .lm import LM\n")
    assert told(package, "lm", select=("FUS102",)) == (functions, 1 - len(functions))


# -- never ------------------------------------------------------------------------------------------------------------

OTHERS = {"a": "def f(x):\n    return x\n", "b": "from .a import f\n", "c": "from .b import f\nfrom . import a\n"}


def test_a_class_that_nothing_names_but_what_is_unused_itself(package: Path) -> None:
    outer = (
        "class Outer(nn.Module):\n    def __init__(self, d):\n        super().__init__()\n        self.part = Old(d)\n"
    )
    write(package, layers=LAYERS + GATE.format(name="Old") + textwrap.indent(outer, "    "))
    assert how(package, "layers", "Old.__call__") == "never"
    assert told(package, "layers") == (["MLP.__call__"], 1)


@pytest.mark.parametrize(
    "user",
    [
        "from .layers import Old\n",
        "from .layers import *\n",
        "from . import layers\ndef make(d):\n    return layers.Old(d)\n",
        "def make(module, d):\n    return module.Old(d)\n",
        "def make(module, d):\n    return getattr(module, 'Old')(d)\n",
        "KINDS = {'old': 'Old'}\n",
    ],
)
def test_what_something_imports_or_looks_up_is_used(package: Path, user: str) -> None:
    write(package, layers=LAYERS + GATE.format(name="Old"), user=user)
    assert how(package, "layers", "Old.__call__") == "often"


def test_calls_of_tests_do_not_count(package: Path) -> None:
    write(package, layers=LAYERS + GATE.format(name="Old"), test_layers="from .layers import Old\n")
    assert how(package, "layers", "Old.__call__") == "never"


@pytest.mark.parametrize(
    ("path", "count"),
    [("tests/run.py", 0), ("test_run.py", 0), ("run_test.py", 0), ("bench_run.py", 0), ("latest.py", 1)],
)
def test_what_a_test_runs_is_silent(tmp_path: Path, path: str, count: int) -> None:
    file = tmp_path / "pkg" / path
    for folder in dict.fromkeys((tmp_path / "pkg", file.parent)):
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    file.write_text(HEAD + "def f(x: mx.array):\n    return mx.tanh(x * 2 + 1) * x\n")
    assert sum(len(r.findings) for r in check_paths([str(file)], Settings())) == count
    assert sum(len(r.findings) for r in check_paths([str(file)], Settings(hot=("*",)))) == 1


def test_a_file_that_may_be_loaded_by_its_name_is_used(package: Path) -> None:
    write(package, other=GATE.format(name="Other"), **OTHERS)
    assert how(package, "other", "Other.__call__") == "never"  # most files beside it are imported
    models = package / "models"
    models.mkdir()
    write(models, **{name: GATE.format(name="Other") for name in ("one", "two", "three", "four")})
    assert how(models, "one", "Other.__call__") == "often"


def test_a_single_file_and_a_folder_without_a_package_are_used(tmp_path: Path) -> None:
    write(tmp_path, one=GATE.format(name="Gate"), two="", three="", four="")
    assert how(tmp_path, "one", "Gate.__call__") == "often"


BRANCHES = """
    def mix(a, b, soft=False):
        if soft:
            return mx.tanh(a) * b + mx.sigmoid(b)
        return a
"""


@pytest.mark.parametrize(("given", "count"), [("", 0), (", soft=False", 0), (", soft=True", 1), (", x.flag", 1)])
def test_a_branch_by_what_all_calls_give(package: Path, given: str, count: int) -> None:
    write(package, helpers=BRANCHES)
    write(package, user=f"from .helpers import mix\ndef run(xs):\n    return [mix(x, x{given}) for x in xs]\n")
    assert len(told(package, "helpers")[0]) == count


def test_what_only_a_branch_makes_that_is_never_taken(package: Path) -> None:
    model(package, "Projector(d)")
    text = """
        class Base(nn.Module):
            def __init__(self, d, old=False):
                super().__init__()
                self.part = Old(d) if old else nn.Linear(d, d)

            def __call__(self, x):
                return self.part(x)
    """
    user = "from .other import Base\ndef make(d):\n    return [Base(d{}) for _ in range(3)]\n"
    write(package, other=textwrap.dedent(GATE.format(name="Old")) + textwrap.dedent(text), user=user.format(""))
    assert how(package, "other", "Old.__call__") == "never"
    write(package, user=user.format(", old=True"))
    assert how(package, "other", "Old.__call__") == "often"


def test_what_runs_where_something_failed_is_silent(package: Path) -> None:
    text = """
        def mix(a, b):
            try:
                return mx.fast.new(a, b)
            except AttributeError:
                return mx.tanh(a) * b + mx.sigmoid(b)
    """
    write(package, helpers=text, user="from .helpers import mix\n")
    assert told(package, "helpers") == ([], 1)


MASKED = """
    class Attention(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.proj = nn.Linear(d, d)

        def __call__(self, x, mask=None):
            x = self.proj(x)
            if mask is not None:
                x = x * mask + mx.tanh(x) * (1 - mask)
            {after}
            return x


    class Layer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.attention, self.norm = None, nn.RMSNorm(d)
            self.attend = Attention(d)

        def __call__(self, x, mask):
            return x + {call}
"""


@pytest.mark.parametrize(
    ("call", "after", "count"),
    [
        ("self.attend(x)", "pass", 0),
        ("self.attend(self.norm(x))", "mask = None", 0),  # bound anew where it was asked already
        ("self.attend(x, mask)", "pass", 1),
        ("self.attend(x, mask=x)", "pass", 1),
        ("self.attend(x, *mask)", "pass", 1),
        ("run(self.attend, x)", "pass", 1),
    ],
)
def test_what_no_call_of_a_kept_object_gives(package: Path, call: str, after: str, count: int) -> None:
    write(package, masked=MASKED.format(call=call, after=after), user="from .masked import Layer\n")
    found, silent = told(package, "masked")
    assert (found, silent) == (["Attention.__call__"] * count, 1 - count)


def test_objects_that_others_may_make_take_anything(package: Path) -> None:
    write(package, masked=MASKED.format(call="self.attend(x)", after="pass"))
    (package / "__init__.py").write_text("from .masked import Attention, Layer\n")
    assert told(package, "masked") == (["Attention.__call__"], 0)


@pytest.mark.parametrize(
    ("name", "base", "user", "expected"),
    [
        ("_mel", "", "", "never"),
        ("_mel", "", "def run(bank, x):\n    return bank._mel(x)\n", "often"),
        ("_mel", "", "def run(bank, x):\n    return getattr(bank, '_mel')(x)\n", "often"),
        ("mel", "", "", "often"),  # a user may call it
        ("_mel", "(other.Bank)", "", "often"),  # that base may
    ],
)
def test_a_private_method_that_nothing_names(package: Path, name: str, base: str, user: str, expected: str) -> None:
    bank = f"import other\nclass Bank{base}:\n    def {name}(self, x):\n        return mx.tanh(x) * 2\n"
    write(package, bank=bank, user=f"from .bank import Bank\n{user}")
    assert how(package, "bank", f"Bank.{name}") == expected


def test_the_name_of_a_kernel_is_no_name_of_a_function(package: Path) -> None:
    text = """
        def gated(x):
            return mx.tanh(x) * 2


        def used(x):
            kernel = mx.fast.{maker}(name="gated", input_names=["x"], output_names=["y"], source="")
            return kernel(inputs=[x])
    """
    write(package, kernels=text.format(maker="metal_kernel"), user="from .kernels import used\n")
    assert how(package, "kernels", "gated") == "never"
    write(package, kernels=text.format(maker="lookup"))
    assert how(package, "kernels", "gated") == "often"


def test_super_with_its_class_named_makes_nothing(package: Path) -> None:
    write(package, projector=PROJECTOR.replace("super()", "super(Projector, self)"))
    assert how(package, "projector", "Projector.__call__") == "seldom"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("inspect.signature(Projector)", "seldom"), ("type(x) is Projector", "often"), ("registered(Projector)", "often")],
)
def test_to_ask_for_a_signature_makes_nothing(package: Path, asked: str, expected: str) -> None:
    user = f"import inspect\nfrom .projector import Projector\nfrom .model import Model\nNAMES = {asked}\n"
    write(package, user=user)
    assert how(package, "projector", "Projector.__call__") == expected


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("for t, h, w in grid.tolist():\n        x = self.projector(x)", "seldom"),
        ("for i, (h, w) in enumerate(grid.tolist()):\n        x = self.projector(x)", "seldom"),
        ("for row in grid.tolist():\n        h, w = row\n        x = self.projector(x)", "seldom"),
        ("for row in grid.tolist():\n        if row == x.shape[1:]:\n            x = self.projector(x)", "seldom"),
        ("for row in grid.tolist():\n        x = self.projector(x) * row", "often"),  # tokens
        ("for t, h in zip(grid, grid):\n        x = self.projector(x)", "often"),
    ],
)
def test_a_loop_over_the_sizes_of_images_is_one_pass(package: Path, loop: str, expected: str) -> None:
    model(package, body=textwrap.indent(f"grid = x.grid\n{textwrap.dedent('    ' + loop)}\nreturn x", " " * 12).strip())
    assert how(package, "projector", "Projector.__call__") == expected


@pytest.mark.parametrize(
    ("given", "kept"),
    [("self", "model.layers_of"), ("self", "model"), ("Model(4, 2)", "model"), ("other", "model")],
)
def test_a_sampler_that_is_given_the_model_by_position(package: Path, given: str, kept: str) -> None:
    text = f"""
        from .model import Model


        def mask(n):
            return mx.where(mx.arange(n)[:, None] >= mx.arange(n), 0.0, -1e9)


        class Sampler:
            def __init__(self, model):
                self.net = {kept}

            def step(self, x):
                return self.net(x) + mask(x.shape[1])

            def run(self, x):
                while x.ndim:
                    x = self.step(x)
                return x


        class Outer(nn.Module):
            def __init__(self, d, n):
                super().__init__()
                self.layers_of = Model(d, n)

            def generate(self, x, other):
                return Sampler({given}).run(x)
    """
    write(package, sampling=text, user="from .sampling import Outer\n")
    assert how(package, "sampling", "mask") == ("often" if given == "other" else "seldom")


@pytest.mark.parametrize(
    ("holder", "user", "expected"),
    [
        ("class Model(other.VLM):\n    def __init__(self, d):\n        super().__init__(d)\n", "", "seldom"),
        ("class Model(nn.Module):\n    def __init__(self, d):\n        self.vlm = other.VLM(d)\n", "", "seldom"),
        ("class Model(nn.Module):\n    def __init__(self, d):\n        self.up = nn.Linear(d, d)\n", "", "often"),
        ("class Model(nn.Module):\n    def __init__(self, d):\n        self.vlm = other.VLM(d)\n",
         "def make(d):\n    return Model(d)\n", "often"),
    ],
)  # fmt: skip
def test_around_a_module_of_another_package(package: Path, holder: str, user: str, expected: str) -> None:
    models = package / "models"
    models.mkdir()
    (models / "__init__.py").write_text("")
    call = "\n    def __call__(self, x):\n        return mx.tanh(x) * 2 + x\n\n\n"
    for name in ("one", "two", "three", "four"):
        write(models, **{name: f"import other\n{holder}{call}{user}"})
    assert how(models, "one", "Model.__call__") == expected


DEVICE = """
    kernel = mx.fast.metal_kernel(name="k", input_names=["a"], output_names=["b"], source="")


    class Mixer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.up, self.down = nn.Linear(d, d), nn.Linear(d, d)

        def __call__(self, a):
            return self.down(mix(self.up(a), use_kernel=not self.training))


    def mix(a, use_kernel=True):
        on_gpu = mx.default_device() == mx.gpu
        if {test}:
            return fallback(a)
        return kernel(inputs=[a])[0]


    def fallback(a):
        return mx.tanh(a) * mx.sigmoid(a) + mx.exp(a)
"""


@pytest.mark.parametrize(
    ("test", "settings", "count"),
    [
        ("not use_kernel or not on_gpu or not mx.metal.is_available()", {}, 0),
        ("mx.default_device() != mx.gpu", {}, 0),
        ("mx.default_device() == mx.cpu", {}, 0),
        ("not use_kernel", {"phase": "train"}, 1),
        ("not mx.metal.is_available()", {"chip": "h200"}, 1),
        ("mx.metal.is_available() and a.shape[1] > 1", {}, 1),
        ("a.shape[1] > 1 or not on_gpu", {}, 1),
        ("not len(a)", {}, 1),
    ],
)
def test_what_only_runs_without_metal(package: Path, test: str, settings: dict[str, Any], count: int) -> None:
    write(
        package, device=DEVICE.format(test=test), user="from .device import Mixer\nall = [Mixer(8) for _ in range(3)]\n"
    )
    found, silent = told(package, "device", **settings)
    assert (found, silent) == (["fallback"] * count, 1 - count)


BOUND = """
    def mix(a, b, soft):
        {bind}
        if use:
            return mx.tanh(a) * b + mx.sigmoid(b)
        return a
"""


@pytest.mark.parametrize(
    ("bind", "count"),
    [
        ("use = soft", 0),
        ("use = not soft", 1),
        ("use = soft or len(a)", 1),
        ("use = soft\n        use = True", 1),
        ("for use in a: pass", 1),
        ("use, other = soft, a", 1),
    ],
)
def test_a_branch_by_a_name_that_is_bound_once(package: Path, bind: str, count: int) -> None:
    write(package, helpers=BOUND.format(bind=bind))
    write(package, user="from .helpers import mix\ndef run(xs):\n    return [mix(x, x, False) for x in xs]\n")
    assert len(told(package, "helpers")[0]) == count


CHOICE = """
    from dataclasses import dataclass


    @dataclass
    class Config:
        width: int = 8
        act: str = {default}
        gated: bool = False


    class Activated(nn.Module):
        def __init__(self, config: Config):
            super().__init__()
            self.up, self.act, self.gated = nn.Linear(config.width, config.width), None, config.gated
            self.act = config.act

        def __call__(self, x):
            x = self.up(x)
            {branch}
                x = mx.tanh(x) * mx.sigmoid(x) + x
            return x
"""
EARLY = """if {}:
                return x
            if x is not None:"""
LATE = """if {}:
                pass
            elif self.gated:
                return x
            if x is not None:"""
ELSE = """if {}:
                x = x + 1
            else:
                return x
            if x is not None:"""


@pytest.mark.parametrize(
    ("default", "branch", "count"),
    [
        ('"gelu"', 'if self.act == "tanh":', 0),
        ('"gelu"', 'if self.act != "gelu":', 0),
        ('"tanh"', 'if self.act == "tanh":', 1),
        ("None", "if self.act == x.name:", 1),
        ('"gelu"', "if self.gated:", 1),  # what a configuration's file turns on
        ('"gelu"', EARLY.format('self.act == "gelu"'), 0),
        ('"gelu"', EARLY.format('self.act == "tanh"'), 1),
        ('"gelu"', EARLY.format("not self.gated"), 1),
        ('"gelu"', LATE.format('self.act == "gelu"'), 1),
        ('"gelu"', ELSE.format('self.act == "gelu"'), 1),
        ('"gelu"', ELSE.format('self.act == "tanh"'), 0),
    ],
)
def test_an_option_that_is_another_word_by_default(package: Path, default: str, branch: str, count: int) -> None:
    choice = CHOICE.format(default=default, branch=branch)
    write(package, choice=choice, user="from .choice import Activated\nall = [Activated(c) for c in range(3)]\n")
    assert told(package, "choice") == (["Activated.__call__"] * count, 1 - count)
    assert told(package, "choice", hot=("*",)) == (["Activated.__call__"], 0)


HELD = """
    from .model import Model


    class Whole(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.parts, self.out = None, nn.Linear(d, d)
            self.parts = {made}

        def __call__(self, x):
            return self.out(self.parts(x))


    def load(d):
        return Whole(d)


    def convert(d):
        {used}
"""


@pytest.mark.parametrize(
    ("made", "used", "expected"),
    [
        ("Model(d, 2)", "return {'model': load}", "seldom"),
        ("Model(d, 2)", "return [('model', lambda: load(d))]", "seldom"),
        ("Model(d, 2)", "return [load(d) for _ in range(3)]", "often"),
        ("[Model(d, 2) for _ in range(2)]", "return {'model': load}", "often"),
    ],
)
def test_a_model_that_several_places_load_is_one_whole(package: Path, made: str, used: str, expected: str) -> None:
    write(package, held=HELD.format(made=made, used=used))
    assert how(package, "projector", "Projector.__call__") == expected


LISTED = """
    class Stack(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.layers = {made}

        def __call__(self, x, mask):
            {loop}
            return x
"""
LISTS = "[Attention(d) for _ in range(len(x))]".replace("x", "d")


@pytest.mark.parametrize(
    ("loop", "count"),
    [
        ("for layer in self.layers: x = layer(x, None)", 0),
        ("for i, layer in enumerate(self.layers): x = layer(x, mask=None)", 0),
        ("for layer, m in zip(self.layers, mask): x = layer(x)", 0),
        ("for layer in reversed(self.layers): x = layer(x)", 0),
        ("for i in range(len(self.layers)): x = self.layers[i](x)", 1),
        ("for layer, m in zip(self.layers, mask): x = layer(x, m)", 1),
        ("for layer in self.layers: x = run(layer, x)", 1),
        ("x = sum(layer(x, None) for layer in self.layers)", 1),
        ("for layer in self.layers: x = layer(x)\n            x = self.layers[0](x, mask)", 1),
    ],
)
def test_what_no_call_in_a_loop_through_objects_gives(package: Path, loop: str, count: int) -> None:
    attention = MASKED[: MASKED.index("    class Layer")].format(after="pass")
    text = textwrap.dedent(attention) + textwrap.dedent(LISTED.format(made=LISTS, loop=loop))
    write(package, masked=text, user="from .masked import Stack\n")
    found, silent = told(package, "masked")
    assert (found, silent) == (["Attention.__call__"] * count, 1 - count)


FLOWS = """
    class Flow(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.scale, self.proj = mx.ones((d,)), nn.Linear(d, d)

        def __call__(self, x, backward=False):
            x = self.proj(x)
            if not backward:
                return mx.tanh(x) * mx.sigmoid(x) + mx.exp(x)
            return x


    class Flows(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.flows = [Flow(d)]
            for _ in range(d):
                self.flows.append(Flow(d))

        def __call__(self, x, backward=False):
            if not backward:
                for flow in self.flows:
                    x = flow(x)
            else:
                for flow in reversed(self.flows):
                    x = flow(x, backward=True)
            return x


    class Voice(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.flows, self.out = None, nn.Linear(d, d)
            self.flows = Flows(d)

        def __call__(self, x):
            return self.out(self.flows(x{given}))
"""


@pytest.mark.parametrize(("given", "count"), [(", backward=True", 0), ("", 1), (", backward=x", 1)])
def test_a_call_where_control_never_comes_gives_nothing(package: Path, given: str, count: int) -> None:
    write(package, flows=FLOWS.format(given=given), user="from .flows import Voice\n")
    found, silent = told(package, "flows")
    assert (found, silent) == (["Flow.__call__"] * count, 1 - count)


MIXED = """
    from .layers import Block
    from .projector import Projector


    class Join(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.parts = {parts}

        def __call__(self, x):
            {loop}
            return x


    class Whole(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.join = Join(d)
            self.layers = [Block(d) for _ in range(d)]

        def __call__(self, x):
            x = self.join({given})
            for layer in self.layers:
                x = layer(x)
            return x
"""
LOOP = "for part in self.parts: x = part(x)"


@pytest.mark.parametrize(
    ("parts", "loop", "given", "expected"),
    [
        ("[nn.RMSNorm(d), Projector(d), nn.Linear(d, d)]", LOOP, "x", "seldom"),
        ("[nn.RMSNorm(d), Projector(d)]", LOOP, "x.astype(self.join.parts[0].weight.dtype)", "seldom"),
        ("[Projector(d), nn.Linear(d, d), Projector(d)]", LOOP, "x", "often"),
        ("[nn.RMSNorm(d), Projector(d)]", "for _ in range(3): x = self.parts[1](x)", "x", "often"),
        ("[nn.RMSNorm(d), Projector(d)]", f"for _ in x:\n                {LOOP}", "x", "often"),
        ("[nn.RMSNorm(d), Projector(d)]", LOOP, "run(self.join.parts, x)", "often"),
    ],
)
def test_one_of_several_that_are_called_in_turn(
    package: Path, parts: str, loop: str, given: str, expected: str
) -> None:
    model(package, "nn.Linear(d, d)")
    write(package, whole=MIXED.format(parts=parts, loop=loop, given=given))
    assert how(package, "projector", "Projector.__call__") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("f = soften if x.flag else mx.exp\n            return f(x)", "seldom"),
        ("f = soften\n            return [f(x) for _ in x]", "often"),
        ("f = soften\n            return run(f, x)", "often"),
        ("f = soften\n            f = mx.compile(f)\n            return f(x)", "often"),
    ],
)
def test_a_function_by_a_local_name(package: Path, body: str, expected: str) -> None:
    write(package, helpers="def soften(x):\n    return mx.tanh(x) * mx.sigmoid(x)\n")
    model(package, "nn.Linear(d, d)", body)
    path = package / "model.py"
    path.write_text("from .helpers import soften\n" + path.read_text())
    assert how(package, "helpers", "soften") == expected


FILL = """
    def kept_of(m: mx.array, x: mx.array) -> mx.array:
        return mx.where(m, x, mx.zeros_like(x))
"""
FILLING = LAYERS.replace("x + self.mlp(self.norm(x))", "x + self.mlp(kept_of(x > 0, self.norm(x)))")


def test_zeros_that_no_layer_writes_are_silent(package: Path) -> None:
    write(package, layers=LAYERS, fill=FILL, sampler="from .fill import kept_of\ndef f(x): return kept_of(x > 0, x)\n")
    assert told(package, "fill") == ([], 1)


def test_zeros_that_each_layer_writes_are_reported(package: Path) -> None:
    write(package, layers="from .fill import kept_of\n" + textwrap.dedent(FILLING), fill=FILL)
    assert told(package, "fill") == (["kept_of"], 0)


ENCODER = """
    from .layers import Block
    from .fill import kept_of


    class Encoder(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.layers = [Block(d) for _ in range(n)]

        def read(self, x):
            return kept_of(x > 0, x)
"""
READER = """
    class Reader:
        def __init__(self, encoder):
            self.encoder = encoder

        def open(self, x):
            return self.encoder.read(x)
"""
ROWS = """
    from .encoder import Encoder


    class Row(nn.Module):
        def __init__(self, d, shared):
            super().__init__()
            self.norm = nn.RMSNorm(d)
            self.shared = shared

        def __call__(self, x):
            return self.shared.{method}(self.norm(x))


    class Rows(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            shared = {made}
            self.rows = [Row(d, shared) for _ in range(n)]

        def __call__(self, x):
            for row in self.rows:
                x = row(x)
            return x
"""


@pytest.mark.parametrize(
    ("method", "made", "expected"),
    [
        ("open", "load(d)", False),  # anything may have this name: that of the reader calls a model
        ("read", "Encoder(d, n)", True),  # each layer is given the model
    ],
)
def test_layers_around_what_calls_a_model(package: Path, method: str, made: str, expected: bool) -> None:
    write(package, fill=FILL, encoder=ENCODER, reader=READER, rows=ROWS.format(method=method, made=made))
    path = str(package / "fill.py")
    assert Modules().is_of_layers(Definition(path, "kept_of")) is expected


def test_zeros_in_a_file_of_no_package_are_reported(tmp_path: Path) -> None:
    write(tmp_path, fill=FILL)
    assert told(tmp_path, "fill") == (["kept_of"], 0)


LAYERED = """
    class Layer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.gate = nn.Linear(d, d)
            self.up = nn.Linear(d, d)

        def __call__(self, x):
            return nn.silu(self.gate(x)) * self.up(x)


    class Projector(nn.Module):
        def __init__(self, d, n=1):
            super().__init__()
            {layers}

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
"""


@pytest.mark.parametrize(
    ("layers", "made", "expected"),
    [
        ("self.layers = [Layer(d) for _ in range(n)]", "Projector(d)", "seldom"),
        ("self.layers = [Layer(d) for _ in range(n)]", "Projector(d, n=1)", "seldom"),
        (
            "self.layers = []\n            for _ in range(n):\n                self.layers.append(Layer(d))",
            "Projector(d)",
            "seldom",
        ),
        ("self.layers = [Layer(d) for _ in range(n)]", "Projector(d, 2)", "often"),
        ("self.layers = [Layer(d) for _ in range(n)]", "Projector(d, n)", "often"),
        ("self.layers = [Layer(d) for _ in range(n)]", "[Projector(d), Projector(d, 3)][0]", "often"),
        ("self.layers = [Layer(d) for _ in range(n + 1)]", "Projector(d)", "often"),
        ("self.layers = [Layer(d) for _ in range(1, n)]", "Projector(d)", "often"),
        ("self.layers = [Layer(d) for _ in range(n) for _ in d]", "Projector(d)", "often"),
    ],
)
def test_layers_of_which_the_package_makes_one(package: Path, layers: str, made: str, expected: str) -> None:
    write(package, projector=LAYERED.format(layers=layers))
    model(package, made)
    assert how(package, "projector", "Layer.__call__") == expected
    assert told(package, "projector")[1] == (expected == "seldom")


def test_one_layer_of_what_each_layer_has_is_one_of_many(package: Path) -> None:
    write(package, projector=LAYERED.format(layers="self.layers = [Layer(d) for _ in range(n)]"))
    write(
        package,
        layers="from .projector import Projector\n" + textwrap.dedent(LAYERS.replace("= MLP(d)", "= Projector(d)")),
    )
    model(package, "nn.Linear(d, d)")
    assert how(package, "projector", "Layer.__call__") == "often"


FEW = """
    def scaled(weights: mx.array) -> mx.array:
        few = weights.reshape({heads})
        return few * 0.5 * few + 1.0
"""
USE = "from .few import scaled\n\n\ndef use(w):\n    return scaled(w)\n"


@pytest.mark.parametrize(("heads", "silent"), [(32, 1), (1 << 20, 0)])
def test_two_launches_on_a_few_numbers_are_silent_where_no_layer_has_them(
    package: Path, heads: int, silent: int
) -> None:
    """Of 32 numbers 512 bytes are spared, of a million 16 MB."""
    write(package, few=FEW.format(heads=heads), use=USE)
    assert told(package, "few")[1] == silent


@pytest.mark.parametrize(
    ("heads", "of", "silent"),
    [
        ("32", "few * 0.5 * few + 1.0", 1),  # 512 bytes
        ("2048", "few * 0.5 * few + 1.0", 1),  # 32 kB in float32
        ("16384", "few * 0.5 * few + 1.0", 0),
        ("32", "mx.tanh(few * 0.5) * few + 1.0", 0),  # three launches
        ("x", "few * 0.5 * few + 1.0", 0),  # nothing says how many numbers
    ],
)
def test_two_launches_on_a_few_numbers_in_each_layer(package: Path, heads: str, of: str, silent: int) -> None:
    layers = LAYERS.replace("x + self.mlp(self.norm(x))", "x + self.mlp(self.norm(x)) * scaled(self.norm.weight, 3)[0]")
    text = FEW.replace("weights: mx.array", "weights: mx.array, x: int").replace("few * 0.5 * few + 1.0", of)
    write(package, few=text.format(heads=heads), layers="from .few import scaled\n" + textwrap.dedent(layers))
    assert told(package, "few")[1] == silent


def test_two_launches_in_each_round_of_a_loop_are_reported(package: Path) -> None:
    body = "    few = w.reshape(32)\n    for _ in range(9):\n        m = m @ (few * 0.5 * few + 1.0)\n    return m\n"
    layers = LAYERS.replace("x + self.mlp(self.norm(x))", "x + self.mlp(self.norm(x)) * scaled(self.norm.weight, x)[0]")
    write(
        package,
        few=f"def scaled(w: mx.array, m: mx.array):\n{body}",
        layers="from .few import scaled\n" + textwrap.dedent(layers),
    )
    assert told(package, "few") == (["scaled"], 0)


def test_two_launches_on_a_few_numbers_are_reported_while_decoding(package: Path) -> None:
    write(package, few=FEW.format(heads=32), use=USE)
    assert told(package, "few", phase="decode") == (["scaled"], 0)


def test_flags_that_many_functions_hand_on_are_followed_once(package: Path) -> None:
    """Each of ten functions is called in three branches by flags that its own callers give: 59,049 ways."""
    first = "def f0(x, a=False, b=True):\n    if a:\n        return mx.tanh(x) * x + mx.sigmoid(x)\n    return x\n\n\n"
    branches = [("a", "a, b"), ("not b", "b, a"), ("a or b", "a or b, b")]
    calls = "".join(f"    if {test}:\n        x = f{{m}}(x, {given})\n" for test, given in branches)
    body = f"def f{{n}}(x, a=False, b=True):\n{calls}    return x\n\n\n"
    last = "def use(x, a, b):\n    return f10(x, a, b)\n"
    text = first + "".join(body.format(n=n, m=n - 1) for n in range(1, 11)) + last
    write(package, flags=text, user="from .flags import use\n\n\ndef run(x, a, b):\n    return use(x, a, b)\n")
    assert told(package, "flags") == (["f0"], 0)


OPTIONAL = """
    from dataclasses import dataclass


    @dataclass
    class Options:
        width: int
        double: bool = False

        @classmethod
        def read(cls, data):
            return Options(data["width"], data.get("double", False))


    class Embedding(nn.Module):
        def __init__(self, width, double=False):
            super().__init__()
            self.double = double
            self.proj = nn.Linear(width, width)

        def __call__(self, x):
            x = self.proj(x)
            if self.double:
                x = mx.tanh(x) * mx.sigmoid(x) + x
            return x


    class Net(nn.Module):
        def __init__(self, options: Options):
            super().__init__()
            self.first = Embedding(options.width, double=options.double)
            self.others = [Embedding(options.width) for _ in range(4)]

        def __call__(self, x):
            for other in self.others:
                x = other(x)
            return self.first(x)


    def small():
        return Options({given})
"""


@pytest.mark.parametrize(
    ("given", "user", "count"),
    [
        ("8", "", 0),
        ("8, False", "", 0),
        ("8, True", "", 1),
        ("8, double=True", "", 1),
        ("**load()", "", 1),
        ("8", "def run(data):\n    return Options.read(data)\n", 1),  # a file may say anything
        ("8", "def run(options):\n    options.double = True\n", 1),
        ("8", "def run(options):\n    setattr(options, 'double', True)\n", 1),
        ("8", "from dataclasses import replace\ndef run(options):\n    return replace(options, double=True)\n", 1),
    ],
)
def test_a_field_that_no_call_of_its_class_gives(package: Path, given: str, user: str, count: int) -> None:
    write(package, net=OPTIONAL.format(given=given))
    write(package, user=f"from .net import Net, Options, small\ndef make():\n    return Net(small())\n{user}")
    (package / "__init__.py").write_text("from . import user\n")
    assert len(told(package, "net")[0]) == count


KERNELS = """
    class Kernels:
        @staticmethod
        def one(x):
            return mx.tanh(x) * mx.sigmoid(x) + x

        @staticmethod
        def other(x):
            return mx.tanh(x) * mx.sigmoid(x) - x
"""


@pytest.mark.parametrize(
    ("user", "functions"),
    [
        ("def run(x):\n    return Kernels.one(x)\n", ["Kernels.one"]),
        ("def run(x):\n    return Kernels.one(Kernels.other(x))\n", ["Kernels.one", "Kernels.other"]),
        ("def run(x, name):\n    return getattr(Kernels, 'other')(Kernels.one(x))\n", ["Kernels.one", "Kernels.other"]),
        ("def run(x):\n    return other(Kernels.one(x))\ndef other(x):\n    return x\n", ["Kernels.one"]),
        (
            "class Others:\n    def other(self, x):\n        return Kernels.one(x)\n"
            "    def run(self, x):\n        return self.other(x)\n",
            ["Kernels.one"],
        ),
        (
            "class Others:\n    @staticmethod\n    def other(x):\n        return x\n"
            "def run(x):\n    return Others.other(Kernels.one(x))\n",
            ["Kernels.one"],
        ),
        (
            "class More(Kernels):\n    def run(self, x):\n        return self.other(Kernels.one(x))\n",
            ["Kernels.one", "Kernels.other"],
        ),
        ("def run(x, k):\n    return k.other(Kernels.one(x))\n", ["Kernels.one", "Kernels.other"]),
        ("K = Kernels()\ndef run(x):\n    return K.other(Kernels.one(x))\n", ["Kernels.one", "Kernels.other"]),
        ("def run(x):\n    return mx.other(Kernels.one(x))\n", ["Kernels.one"]),
        ("", ["Kernels.one", "Kernels.other"]),  # users may call either
        ("__all__ = ['Kernels']\ndef run(x):\n    return Kernels.one(x)\n", ["Kernels.one", "Kernels.other"]),
    ],
)
def test_a_static_method_beside_one_that_is_called(package: Path, user: str, functions: list[str]) -> None:
    write(package, kernels=KERNELS, user=f"from .kernels import Kernels\n{user}")
    (package / "__init__.py").write_text("from . import user\n")
    assert told(package, "kernels")[0] == functions


CHOSEN = """
    class Wave(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.rate = mx.ones((d,))

        def __call__(self, x):
            return mx.sin(x * self.rate) * mx.tanh(x)


    class Plain(nn.Module):
        def __init__(self, d, kind="wave"):
            super().__init__()
            self.act = nn.ReLU()

        def __call__(self, x):
            return self.act(x)


    class Waving(nn.Module):
        def __init__(self, d, kind="wave"):
            super().__init__()
            act = Wave if kind == "wave" else nn.ReLU
            self.acts = [act(d) for _ in range(3)]

        def __call__(self, x):
            for act in self.acts:
                x = act(x)
            return x


    class Net(nn.Module):
        def __init__(self, d, plain):
            super().__init__()
            block = Plain if plain else Waving
            self.blocks = [block(d, {given}) for _ in range(3)]

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return x
"""


@pytest.mark.parametrize(
    ("given", "user", "expected"),
    [
        ("kind='relu'", "", "never"),
        ("kind='wave'", "", "often"),
        ("*d", "", "often"),
        ("'relu'", "from .chosen import Waving\n", "never"),
        ("'relu'", "def make(d):\n    return chosen.Waving(d)\n", "often"),
        ("'relu'", "def is_wave(name):\n    return name == 'Wave'\n", "never"),  # a text that looks nothing up
        ("'relu'", "def wave():\n    return getattr(chosen, 'Wave')\n", "often"),
    ],
)
def test_a_class_by_a_local_name(package: Path, given: str, user: str, expected: str) -> None:
    write(package, chosen=CHOSEN.format(given=given), user="from .chosen import Net\n")
    others = package / "others"
    others.mkdir()
    write(others, other=("from .. import chosen\n" if "chosen." in user or "chosen," in user else "") + user)
    assert how(package, "chosen", "Wave.__call__") == expected


ITSELF = """
    class Layer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.proj = nn.Linear(d, d)

        def __call__(self, x, mask=None):
            x = self.proj(x)
            if mask is not None:
                x = x * mask + mx.tanh(x) * (1 - mask)
            return x


    class Model(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.layers = [Layer(d) for _ in range(n)]

        def __call__(self, x, mask=None):
            if mask is not None:
                mask = mask.astype(x.dtype)
            {before}
            for i, layer in enumerate(self.layers):
                x = layer(x, mask)
                if i % 2 and mask is not None:
                    mask = mask[:, ::2]
            return x

        def generate(self, x, given):
            return {run}

        @classmethod
        def loaded(cls, model: "Model") -> "Model":
            return model
"""


@pytest.mark.parametrize(
    ("run", "before", "user", "count"),
    [
        ("self(x)", "pass", "", 0),
        ("self(x, None)", "pass", "", 0),
        ("self(x, mask=given)", "pass", "", 1),
        ("self(x)", "mask = x", "", 1),
        ("self(x)", "if len(x) > 2: mask = x", "", 1),
        ("x", "pass", "", 1),  # nothing says how it is called
        ("self(x)", "pass", "from .model import Model\ndef run(x):\n    return Model(8, 2)(x, x)\n", 1),
        ("self(x)", "pass", "from .model import Model\ndef run(model: Model, x):\n    return model(x, x)\n", 1),
    ],
)
def test_a_model_that_calls_itself(package: Path, run: str, before: str, user: str, count: int) -> None:
    models = package / "models"
    models.mkdir()
    write(models, model=ITSELF.format(run=run, before=before), user=user)
    (models / "__init__.py").write_text("from .model import Model\n")
    assert len(told(models, "model")[0]) == count


READ_OUT = """
    class Layer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.proj = nn.Linear(d, d)

        def __call__(self, x):
            x = self.proj(x)
            y = mx.tanh(x) * mx.sigmoid(x) + x
            {after}


    class Net(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.layers = [Layer(d) for _ in range(n)]

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
"""


@pytest.mark.parametrize(
    ("after", "count"),
    [
        ("return mx.argmax(y[0], axis=-1).tolist()", 0),
        ("return y.shape[0] * mx.mean(mx.abs(y)).item()", 0),
        ("return y", 1),
        ("return y, mx.max(y).item()", 1),
        ("return self.proj(y) if mx.max(y).item() > 0 else x", 1),
        ("self.kept = y\n            return mx.max(y).item()", 1),
        ("return mx.max(y)", 1),
        ("return y @ mx.linalg.inv(x.T @ x, stream=mx.cpu)", 0),  # on the CPU alone
        ("return y @ mx.linalg.svd(x, stream=mx.cpu)[2]", 0),
        ("return y / mx.linalg.norm(x)", 1),
    ],
)
def test_what_only_the_host_reads_is_silent(package: Path, after: str, count: int) -> None:
    write(package, net=READ_OUT.format(after=after), user="from .net import Net\n")
    assert told(package, "net") == (["Layer.__call__"] * count, 1 - count)
    assert told(package, "net", hot=("*",)) == (["Layer.__call__"], 0)


STEPPER = """
    class Stepper{base}:
        def __init__(self):
            {init}

        def measure(self, x: mx.array) -> {returns}:
            self.mean = 0.9 * self.mean + 0.1 * x * x
            return read(mx.max(self.mean))


    def read(x: mx.array) -> float:
        return x.item()
"""


@pytest.mark.parametrize(
    ("base", "init", "returns", "count"),
    [
        ("", "self.mean = mx.zeros((8,))", "float", 0),
        ("", "self.mean = mx.zeros((8,))", "mx.array", 1),
        ("(nn.Module)", "super().__init__(); self.mean = mx.zeros((8,))", "float", 1),
    ],
)
def test_a_function_that_returns_a_number_waits_for_it(
    package: Path, base: str, init: str, returns: str, count: int
) -> None:
    write(package, step=STEPPER.format(base=base, init=init, returns=returns), user="from .step import Stepper\n")
    assert told(package, "step") == (["Stepper.measure"] * count, 1 - count)


BUCKETS = """
    class Attention(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.proj = nn.Linear(d, d)

        @staticmethod
        def _bucket(x, both=True, size=8):
            if both:
                return mx.abs(x)
            else:
                return mx.tanh(x) * mx.sigmoid(x)

        def __call__(self, x):
            return self.proj({call})


    class Net(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.layers = [Attention(d) for _ in range(n)]

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
"""


@pytest.mark.parametrize(
    ("call", "user", "count"),
    [
        ("self._bucket(x, both=True)", "", 0),
        ("self._bucket(x, True, 4)", "", 0),
        ("Attention._bucket(x)", "", 0),
        ("self._bucket(x, both=False)", "", 1),
        ("self._bucket(x, x is not None)", "", 1),
        (
            "self._bucket(x)",
            "class Other:\n    def run(self, x):\n        return self._bucket(x, both=False)\nmade = Other()\n",
            1,  # it may be mixed in
        ),
        (
            "self._bucket(x)",
            "class Other:\n    def _bucket(self, x, both=True):\n        return x\n\n"
            "    def run(self, x):\n        return self._bucket(x, both=False)\nmade = Other()\n",
            0,  # another class's
        ),
        ("self._bucket(x)", "def _bucket(x, both):\n    return x\nmade = _bucket(x, False)\n", 0),
        (
            "self._bucket(x)",
            "from .net import Attention\nclass More(Attention):\n    def run(self, x):\n"
            "        return self._bucket(x, both=False)\nmade = More(8)\n",
            1,
        ),
        ("self._bucket(x)", "from .net import Attention\nmade = Attention._bucket(mx.ones(2), False)\n", 1),
        ("self._bucket(x)", "net = Net(8, 2)\nmade = net.layers[0]._bucket(x, False)\n", 1),
        ("self._bucket(x)", "def run(layer, x):\n    return getattr(layer, '_bucket')(x, False)\n", 1),
    ],
)
def test_what_a_private_method_is_given(package: Path, call: str, user: str, count: int) -> None:
    write(package, net=BUCKETS.format(call=call), user=f"from .net import Net\n{user}")
    (package / "__init__.py").write_text("from . import user\n")
    assert len(told(package, "net")[0]) == count


RETURNED = """
    class Layer(nn.Module):
        def __init__(self, d, act="silu"):
            super().__init__()
            self.act = act
            self.proj = nn.Linear(d, d)

        def activated(self, x):
            if self.act == "silu":
                return nn.silu(x)
            return mx.tanh(x) * mx.sigmoid(x)

        def __call__(self, x):
            return self.activated(self.proj(x))


    class Net(nn.Module):
        def __init__(self, d, n, act="silu"):
            super().__init__()
            self.layers = [Layer(d, act=act) for _ in range(n)]

        @staticmethod
        def mask(x):
            return x > 0

        {make}

        def __call__(self, x):
            for layer in self.layers:
                x = layer(Net.mask(x) * x)
            return x
"""


@pytest.mark.parametrize(
    ("make", "made", "count"),
    [
        ("kind = 1", "Net(8, 2)", 0),
        ("kind = 1", "Net(8, 2, 'tanh')", 1),
        ("kind = 1", "Net(8, 2, read())", 1),
        ("@classmethod\n        def make(cls, d, act):\n            return cls(d, 2, act)", "Net(8, 2)", 1),
    ],
)
def test_what_stands_behind_a_return_for_an_option(package: Path, make: str, made: str, count: int) -> None:
    write(package, net=RETURNED.format(make=make))
    write(package, user=f"from .net import Net\ndef run(x):\n    return {made}(x)\nready = run(mx.ones(8))\n")
    (package / "__init__.py").write_text("from . import user\n")
    assert len(told(package, "net")[0]) == count


GROUPED = """
    from dataclasses import dataclass


    @dataclass
    class Config:
        heads: int = 8
        kv_heads: int = 8


    class Attention(nn.Module):
        def __init__(self, config: Config):
            super().__init__()
            self.groups = config.heads // config.kv_heads

        def __call__(self, q, k, v):
            if self.groups > 1:
                k = mx.repeat(k, self.groups, axis=1)
                v = mx.repeat(v, self.groups, axis=1)
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0)


    class Model(nn.Module):
        def __init__(self, config: Config, n):
            super().__init__()
            self.layers = [Attention(config) for _ in range(n)]

        def __call__(self, q, k, v):
            for layer in self.layers:
                q = layer(q, k, v)
            return q
"""


def test_a_checkpoint_may_have_fewer_heads_of_keys_than_by_default(package: Path) -> None:
    write(package, net=GROUPED, user="from .net import Model\n")
    (package / "__init__.py").write_text("from . import user\n")
    assert told(package, "net") == (["Attention.__call__"], 0)


QUANTIZER = """
    def quantize(model, w, steps):
        for j in range(steps):
            w = w - w @ w.T
            w = w * mx.sigmoid(w) + mx.tanh(w)
        {replace}
        return w


    def main(model):
        w = quantize(model, mx.ones((64, 64)), 8)
        return w @ w.T
"""


@pytest.mark.parametrize("replace", ["model.update_modules({'w': w})", "model.updated({'w': w})"])
def test_what_only_a_quantizer_does(package: Path, replace: str) -> None:
    write(package, quant=QUANTIZER.format(replace=replace), user="from .quant import main\n")
    found = told(package, "quant")[0]
    assert bool(found) is ("update_modules" not in replace)
    assert told(package, "quant", hot=("*",))[0]


CODECS = """
    class Exact:
        def decode(self, x, scale, shift):
            return mx.sigmoid(x * scale + shift) * x


    class Coarse:
        def decode(self, x, scale, shift):
            return x


    class Split:
        def __init__(self, x, mode):
            self._fill(x, mode)

        @classmethod
        def restored(cls, x, mode):
            new = {new}
            new._fill(x, mode)
            return new

        def _fill(self, x, mode):
            kind = Exact if mode == "exact" else Coarse
            self.low, self.high = kind(), kind()


    class Named:
        @classmethod
        def of(cls, x):
            return cls()


    def build(x, bits, mode):
        if bits == int(bits):
            kind = Exact if mode == "exact" else Coarse
            return kind()
        return Split(x, mode)


    def restore(x):
        return Split.restored(x, {restored})


    def run(codec, x):
        if isinstance(codec, Exact):
            return codec.decode(x, x + 1, x - 1)
        return codec.decode(x, x, x)


    class Cache:
        def keys(self, x, bits):
            self.codec = build(x, bits, mode="coarse")
            return run(self.codec, x)
"""


@pytest.mark.parametrize(
    ("new", "restored", "user", "expected"),
    [
        ("cls.__new__(cls)", "'coarse'", "", "never"),
        ("cls.__new__(cls)", "'exact'", "", "often"),
        ("cls.__new__(cls)", "x.mode", "", "often"),
        ("cls(x, mode)", "'coarse'", "", "often"),  # a subclass may take other arguments
        ("cls.__new__(cls)", "'coarse'", "made = codecs.build(1, 2, 'exact')\n", "often"),
        ("cls.__new__(cls)", "'coarse'", "made = codecs.Exact()\n", "often"),
        ("cls.__new__(cls)", "'coarse'", "def made():\n    return codecs.Exact()\n", "often"),
        ("cls.__new__(cls)", "'coarse'", "def given(x: codecs.Exact):\n    return x\n", "never"),
        ("cls.__new__(cls)", "'coarse'", "class More(codecs.Exact):\n    pass\n", "often"),
        ("cls.__new__(cls)", "'coarse'", "def kind():\n    return getattr(codecs, 'Exact')\n", "often"),
        (
            "cls.__new__(cls)",
            "'coarse'",
            "def fill(split, x):\n    split._fill(x, 'exact')\nmade = fill(codecs.restore(1), 1)\n",  # whatever that is
            "often",
        ),
    ],
)
def test_a_class_that_only_another_option_makes(
    package: Path, new: str, restored: str, user: str, expected: str
) -> None:
    used = "from . import codecs\nfrom .codecs import Cache, restore\n"
    write(package, codecs=CODECS.format(new=new, restored=restored), user=used + user)
    (package / "__init__.py").write_text("from . import user\n")
    assert how(package, "codecs", "Exact.decode") == expected


def test_a_class_of_another_option_that_the_package_offers(package: Path) -> None:
    write(package, codecs=CODECS.format(new="cls.__new__(cls)", restored="'coarse'"))
    (package / "__init__.py").write_text("from .codecs import Cache, Exact\n")
    assert how(package, "codecs", "Exact.decode") == "often"
