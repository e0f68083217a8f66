"""What runs inside mx.compile across the files of a package."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from fuselint.config import Settings
from fuselint.engine import check_paths
from fuselint.finding import Finding
from fuselint.graph.compiling import UNCOMPILED
from fuselint.source.modules import Modules

HEAD = "from functools import partial\nimport os\nimport mlx.core as mx\nimport mlx.nn as nn\n"

LAYERS = """
class MLP(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.gate = nn.Linear(dims, dims)
        self.up = nn.Linear(dims, dims)
        self.down = nn.Linear(dims, dims)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down(self.gate(x) * mx.sigmoid(self.gate(x)) * self.up(x))
"""

MODEL = """
from .layers import MLP

class Block(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.mlp = MLP(dims)

    def __call__(self, x):
        return x + self.mlp(x)

class Model(nn.Module):
    def __init__(self, dims: int, depth: int = 2):
        super().__init__()
        self.blocks = [Block(dims) for _ in range(depth)]

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""

COMPILED = "from .model import Model\ndef sample(model: Model, x):\n    step = mx.compile(model)\n    return step(x)\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "examples" / "pack"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    write(folder, layers=LAYERS, model=MODEL)
    return folder


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(text))


def compiled(folder: Path, name: str = "layers") -> set[str]:
    return set(dict(Modules().compiled(str(folder / f"{name}.py")).compiled))


def partly(folder: Path, name: str = "layers") -> dict[str, str]:
    return dict(Modules().compiled(str(folder / f"{name}.py")).partly)


def found(folder: Path, name: str = "layers", code: str = "FUS301") -> list[Finding]:
    (result,) = check_paths([str(folder / f"{name}.py")], Settings(select=(code,)))
    assert not result.errors
    return list(result.findings)


# -- from where -------------------------------------------------------------------------------------------------------


def test_code_that_nothing_compiles_is_not_compiled(package: Path) -> None:
    write(package, run="from .model import Model\ndef sample(model: Model, x):\n    return model(x)\n")
    assert not compiled(package) and not partly(package)
    assert len(found(package)) == 1


WAYS = {
    "a model that is a parameter": COMPILED,
    "its __call__": COMPILED.replace("mx.compile(model)", "mx.compile(model.__call__)"),
    "a partial of mx.compile": COMPILED.replace("mx.compile(model)", "partial(mx.compile, shapeless=True)(model)"),
    "a lambda": COMPILED.replace("mx.compile(model)", "mx.compile(lambda x: model(x))"),
    "a name of mx.compile": "from mlx.core import compile as fast\n" + COMPILED.replace("mx.compile", "fast"),
    "an inner function": """
        from .model import Model
        class Pipeline:
            transformer: Model
            @staticmethod
            def _predict(transformer, scale):
                def predict(x):
                    return scale * transformer(x)
                return mx.compile(predict)
            def generate(self, x):
                predict = self._predict(self.transformer, 2.0)
                return predict(x)
        """,
    "a decorated inner function": """
        from .model import Model
        def sample(model: "Model | None", x):
            @partial(mx.compile, shapeless=True)
            def step(x):
                return model(x)
            return step(x)
        """,
    "a method": """
        from .model import Model
        class Runner:
            def __init__(self, dims):
                self.model = Model(dims)
                self.step = mx.compile(self._step)
            def _step(self, x):
                return self.model(x)
            def __call__(self, x):
                return self.step(x)
        """,
    "a module object": """
        from .model import Model
        class Runner:
            def __init__(self, dims):
                self.model = Model(dims)
                self.fast = mx.compile(self.model)
            def __call__(self, x):
                return self.fast(x)
        """,
    "one that is compiled when it is first called": """
        from .model import Model
        class Runner:
            def __init__(self, dims):
                self.model = Model(dims)
                self.fast = None
            def _step(self, x):
                return self.model(x)
            def __call__(self, x, mask=None):
                if mask is None and self.fast is None:
                    self.fast = mx.compile(self._step)
                return self.fast(x)
        """,
    "a model that a function makes": """
        from .model import Model
        def load() -> Model:
            return Model(8)
        def sample(x):
            model = load()
            model = mx.compile(model)
            return model(x)
        """,
    "a layer that is put in the place of another": """
        from .model import Model
        class Runner:
            def __init__(self, dims):
                self.model = Model(dims)
                self.switch()
            def switch(self):
                for block in self.model.blocks:
                    block.mlp = mx.compile(block.mlp)
            def __call__(self, x):
                return self.model(x)
        """,
    "a model in a sequence": """
        from .model import Model
        class Runner:
            def __init__(self, dims):
                self.parts = nn.Sequential(nn.Linear(dims, dims), Model(dims))
            def __call__(self, x):
                return mx.compile(self.parts)(x)
        """,
    "a function of another module": """
        from .model import Model
        from .loop import run
        def sample(model: Model, x):
            @mx.compile
            def step(x):
                return run(model, x)
            return step(x)
        """,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_another_file_compiles_is_compiled(package: Path, way: str) -> None:
    write(package, run=WAYS[way], loop="def run(model, x):\n    return model(x)\n")
    assert compiled(package) == {"MLP.__call__"}
    assert not partly(package)
    assert not found(package)


def test_a_helper_of_another_file_is_compiled_with_the_decorated_function(package: Path) -> None:
    write(
        package,
        helpers="def soften(x, y):\n    return mx.tanh(x * 0.5) * y + x\n",
        run="from .helpers import soften\n@mx.compile\ndef f(x, y):\n    return soften(x, y)\n",
    )
    assert compiled(package, "helpers") == {"soften"}


def test_a_class_of_the_same_name_elsewhere_is_another(package: Path) -> None:
    others = "from .others import Layer, MLP\ndef run(layer: Layer, x):\n    return layer(x)\n"
    write(package, others=LAYERS, run=COMPILED, user=others)
    assert compiled(package) == {"MLP.__call__"}
    assert not compiled(package, "others") and len(found(package, "others")) == 1


def test_overridden_methods_are_those_of_the_object(package: Path) -> None:
    write(
        package,
        base="""
        class Base:
            def __call__(self, x):
                return self.work(x)
            def work(self, x):
                return x
        """,
        one="from .base import Base\nclass One(Base):\n    def work(self, x):\n        return mx.exp(x) * x + 1\n",
        two="from .base import Base\nclass Two(Base):\n    def work(self, x):\n        return mx.exp(x) * x + 2\n",
        run="from .one import One\ndef sample(x):\n    model = One()\n    return mx.compile(model)(x)\n",
    )
    assert compiled(package, "one") == {"One.work"}
    assert not compiled(package, "two")


def test_a_parameter_that_nothing_tells_of_is_left_alone(package: Path) -> None:
    write(package, run="def sample(model, x):\n    return mx.compile(model)(x)\n")
    assert not compiled(package) and len(found(package)) == 1


ROTATION = """
def rotate(x: mx.array, cos: mx.array, sin: mx.array):
    B, L, H, D = x.shape
    y = x.astype(mx.float32).reshape(B, L, H, D // 2, 2)
    return cos * y[..., 0] - sin * y[..., 1]
"""


def test_cuts_of_kernels_are_left_to_the_file_that_compiles(package: Path) -> None:
    write(package, rope=ROTATION.replace("def rotate", "@mx.compile\ndef rotate"))
    assert len(found(package, "rope", "FUS302")) == 1
    write(package, rope=ROTATION)
    assert not found(package, "rope", "FUS302") and len(found(package, "rope")) == 1
    write(package, run="from .rope import rotate\n@mx.compile\ndef f(x, a, b):\n    return rotate(x, a, b) + x\n")
    assert not found(package, "rope", "FUS302") and not found(package, "rope")


# -- both ways --------------------------------------------------------------------------------------------------------

EAGER = "from .model import Model\ndef check(model: Model, x):\n    return model(x)\n"


def test_what_is_called_outside_too_keeps_its_finding_and_says_so(package: Path) -> None:
    write(package, run=COMPILED, other=EAGER)
    assert not compiled(package)
    assert partly(package) == {"MLP.__call__": "run.py:7 compiles it, check (other.py:7) calls it without"}
    (finding,) = found(package)
    (told,) = [o for o in finding.obligations if o.claim == "it runs uncompiled too"]
    assert told.verdict == "proven" and told.because == partly(package)["MLP.__call__"]
    assert finding.fix is not None and finding.fix.applicability == "safe"
    assert ": uncompiled, " in finding.message


NORMED = """class Norm(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.norm = nn.RMSNorm(dims)
    def __call__(self, x):
        return self.norm(x.astype(mx.float32)).astype(x.dtype) * 2
"""


def test_whatever_is_counted_says_that_it_counts_what_runs_uncompiled(package: Path) -> None:
    write(package, norm=NORMED, run=COMPILED.replace("Model", "Norm").replace(".model", ".norm"))
    write(package, other="from .norm import Norm\ndef check(norm: Norm, x):\n    return norm(x)\n")
    (finding,) = found(package, "norm", "FUS104")
    assert ": uncompiled, " in finding.message and any(o.claim == UNCOMPILED for o in finding.obligations)
    write(package, other="")
    assert not any(": uncompiled, " in f.message for f in found(package, "norm", "FUS104"))


def test_calls_of_tests_do_not_count(package: Path) -> None:
    (package / "tests").mkdir()
    (package / "tests" / "__init__.py").write_text("")
    (package / "tests" / "other.py").write_text(EAGER.replace(".model", "..model"))
    write(package, run=COMPILED, test_model=EAGER)
    assert compiled(package) == {"MLP.__call__"}


def test_what_only_a_test_compiles_is_not_compiled(package: Path) -> None:
    write(package, test_model=COMPILED)
    modules = Modules()
    for name in ("test_model", "layers"):
        assert not modules.compiled(str(package / f"{name}.py")).compiled
    assert len(found(package)) == 1


def test_a_call_of_module_level_code_does_not_count(package: Path) -> None:
    write(package, run=COMPILED, other="from .model import Model\nmodel = Model(8)\nprint(model(mx.ones((2, 8))))\n")
    assert compiled(package) == {"MLP.__call__"}


def test_a_call_under_a_gradient_does_not_count(package: Path) -> None:
    training = """
        from typing import Protocol
        from .model import Model
        class Adapter(Protocol):
            def predict(self, x): ...
        class ModelAdapter(Adapter):
            def __init__(self, model: Model):
                self.model = model
            def predict(self, x):
                return self.model(x)
        def loss(adapter: Adapter, x):
            return adapter.predict(x).sum()
        def train(adapter: Adapter, x):
            return nn.value_and_grad(model=adapter.model, fn=lambda x: loss(adapter, x))(x)
        """
    write(package, run=COMPILED, training=training)
    assert compiled(package) == {"MLP.__call__"}
    write(package, training=training.replace("nn.value_and_grad(model=adapter.model, fn=", "print("))
    assert not compiled(package) and set(partly(package)) == {"MLP.__call__"}


def test_a_method_that_nobody_calls_does_not_count(package: Path) -> None:
    dead = (
        "\n    def reference(self, x):\n        for block in self.blocks:\n            x = block(x)\n        return x\n"
    )
    write(package, run=COMPILED, model=MODEL + dead)
    assert compiled(package) == {"MLP.__call__"}
    write(package, other="from .model import Model\ndef check(model: Model, x):\n    return model.reference(x)\n")
    assert set(partly(package)) == {"MLP.__call__"}


KERNEL = """
from .layers import MLP

class Part:
    def __init__(self, dims):
        self.mlp = MLP(dims)

    def forward(self, x):
        return self.mlp(x)

    def forward_given(self, x):
        return self.mlp(x)

class Whole:
    def __init__(self, dims):
        self.parts = [Part(dims) for _ in range(2)]

    def forward(self, x):
        for part in self.parts:
            x = part.forward(x)
        return x

    def forward_given(self, x):
        for part in self.parts:
            x = part.forward_given(x)
        return x
"""
KEPT = """
from .whole import Whole

class Model(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.whole = Whole(dims)
        self.step = mx.compile(lambda x: self.whole.forward_given(x))

    def __call__(self, x):
        return {call}
"""


@pytest.mark.parametrize(("call", "outside"), [("self.step(x)", False), ("self.step(x) + self.whole.forward(x)", True)])
def test_a_plain_class_that_the_package_keeps_and_calls_by_another_method(
    package: Path, call: str, outside: bool
) -> None:
    write(package, whole=KERNEL, model=KEPT.format(call=call))
    assert (set(partly(package)), compiled(package)) == (
        ({"MLP.__call__"}, set()) if outside else (set(), {"MLP.__call__"})
    )


def test_what_is_handed_on_may_be_called_outside(package: Path) -> None:
    write(
        package,
        helpers="def soften(x, y):\n    return mx.tanh(x * 0.5) * y + x\n",
        run="from .helpers import soften\n@mx.compile\ndef f(x, y):\n    return soften(x, y)\n",
        other="from .helpers import soften\nACTIVATIONS = {'soften': soften}\n",
    )
    assert set(partly(package, "helpers")) == {"soften"}


def test_a_helper_of_a_compiled_function_that_another_file_calls(package: Path) -> None:
    helpers = (
        "def soften(x, y):\n    return mx.tanh(x * 0.5) * y + x\n@mx.compile\ndef f(x, y):\n    return soften(x, y)\n"
    )
    write(package, helpers=helpers)
    assert not found(package, "helpers")
    write(package, other="from .helpers import soften\ndef g(x, y):\n    return soften(x, y)\n")
    assert set(partly(package, "helpers")) == {"soften"} and len(found(package, "helpers")) == 1


def test_functions_that_call_each_other(package: Path) -> None:
    loop = """
        def odd(x, n):
            return even(mx.exp(x) * x + 1, n - 1) if n else x
        def even(x, n):
            return odd(mx.tanh(x) * x + 2, n - 1) if n else x
        """
    write(package, loop=loop, run="from .loop import odd\n@mx.compile\ndef f(x):\n    return odd(x, 4)\n")
    assert compiled(package, "loop") == {"odd", "even"}
    write(package, other="from .loop import odd\ndef g(x):\n    return odd(x, 2)\n")
    assert set(partly(package, "loop")) == {"odd", "even"}


def test_the_variable_before_it_is_compiled_is_another(package: Path) -> None:
    write(
        package,
        run="""
        from .model import Model
        class Runner:
            def __init__(self, dims):
                self.model = Model(dims)
            def __call__(self, x, model=None):
                model = mx.compile(model) if model is not None else self.model
                return model(x)
        """,
    )
    assert not compiled(package)


# -- switches ---------------------------------------------------------------------------------------------------------

SWITCHED = """
from .model import Model
FAST = os.environ.get("FAST", "{env}") == "1"
class Runner:
    def __init__(self, dims, fast={flag}):
        self.model = Model(dims)
        self.fast = fast
    def step(self):
        def step(x):
            return self.model(x)
        {test}
    def __call__(self, x, fast: bool = {flag}):
        return self.step()(x)
"""


@pytest.mark.parametrize(
    ("test", "flag", "env", "on"),
    [
        ("return mx.compile(step) if self.fast else step", True, 0, True),
        ("return mx.compile(step) if self.fast else step", False, 0, False),
        ("return step if not self.fast else mx.compile(step)", False, 1, False),
        ("if not self.fast: return step\n        return mx.compile(step)", True, 1, True),
        ("if not self.fast: return step\n        return mx.compile(step)", False, 1, False),
        ("if FAST: return mx.compile(step)\n        return step", False, 1, True),
        ("if FAST: return mx.compile(step)\n        return step", True, 0, False),
        ("if FAST and self.fast: return mx.compile(step)\n        return step", True, 0, False),
        ("if FAST or self.fast: return mx.compile(step)\n        return step", True, 0, True),
        ("if mx.metal.is_available(): return mx.compile(step)\n        return step", False, 0, True),
        ("if is_old_chip(): return step\n        return mx.compile(step)", False, 0, True),
    ],
)
def test_what_is_compiled_by_default(package: Path, test: str, flag: bool, env: int, on: bool) -> None:
    write(package, run=SWITCHED.format(test=test, flag=flag, env=env))
    assert compiled(package) == ({"MLP.__call__"} if on else set())
    assert not partly(package)


def test_a_parameter_without_a_default_is_what_calls_say(package: Path) -> None:
    run = """
        from .model import Model
        def make(model: Model, fast):
            def step(x):
                return model(x)
            return mx.compile(step) if fast else step
        def sample(model: Model, x, fast: bool = {0}):
            return make(model, fast=fast)(x)
        """
    write(package, run=run.format(True))
    assert compiled(package) == {"MLP.__call__"}
    write(package, run=run.format(False))
    assert not compiled(package)


def test_a_switch_that_nobody_uses_is_off(package: Path) -> None:
    run = """
        from .model import Model
        class Runner:
            def __init__(self, dims):
                self.model = Model(dims)
            def compile_model(self):
                self.model = mx.compile(self.model)
            def __call__(self, x):
                return self.model(x)
        """
    write(package, run=run)
    assert not compiled(package)
    write(package, other="from .run import Runner\ndef load():\n    runner = Runner(8)\n    runner.compile_model()\n")
    assert compiled(package) == {"MLP.__call__"}


ONCE = """
    from .model import Model

    class Whole:
        def __init__(self, dims):
            self.model = Model(dims)
            self.kept = {{}}
            self.ready = None

        def prepared(self, x):
            return self.model(x)

        def run(self, x, steps):
            {before}
            step = mx.compile(self.model)
            for _ in range(steps):
                x = step(x)
                {inside}
            return x

        def other(self, x):
            {other}
    """


FILLED = """
            if made is None or made is not x:
                made = self.prepared(x)
                self.kept[x.shape] = made
            return made"""


@pytest.mark.parametrize(
    ("before", "inside", "other", "both"),
    [
        ("x = self.prepared(x)", "pass", "return x", False),  # once beside the steps
        ("pass", "x = self.prepared(x)", "return x", True),
        ("pass", "pass", "return self.prepared(x)", True),
        ("for i in range(2): x = self.prepared(x)", "pass", "return x", True),
        ("pass", "x = self.other(x)", "made = self.kept.get(x.shape)" + FILLED, False),
        ("pass", "x = self.other(x)", "made = None" + FILLED, True),
        ("pass", "if self.ready is None: self.ready = self.prepared(x)", "return x", False),
        ("pass", "if self.ready is not None: self.ready = self.prepared(x)", "return x", True),
        ("pass", "if self.ready is None: x = self.prepared(x)", "return x", True),
        ("made = None", "if made is None: made = self.prepared(x)", "return x", True),
        ("x = self.prepared(x)", "pass", "return self.prepared(x)", True),
    ],
)
def test_what_runs_uncompiled_once_runs_compiled(
    package: Path, before: str, inside: str, other: str, both: bool
) -> None:
    write(package, run=ONCE.format(before=before, inside=inside, other=other))
    assert bool(partly(package)) is both
    assert bool(compiled(package)) is not both


def test_a_compiled_helper_that_is_run_once_before(package: Path) -> None:
    text = """
        @mx.compile
        def step(x):
            return near(x) + 1
        def near(x):
            return mx.tanh(x) * mx.sigmoid(x) - x
        def solve(x):
            x = near(x)
            for _ in range(8):
                {}
            return x
        """
    write(package, layers=text.format("x = step(x)"), run="from .layers import solve\n", model="")
    assert compiled(package) >= {"near"}
    write(package, layers=text.format("x = x + 1"), run="from .layers import solve\n", model="")
    assert "near" not in compiled(package)
