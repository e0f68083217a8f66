"""What may run in a region, and what may not."""

import pytest

from fuselint.verify.vet import Barred, vet

ALLOWED = {
    "operations": "result = mx.softmax(x.astype(mx.float32) @ x.T, axis=-1)",
    "fused and activations": "result = mx.fast.rms_norm(nn.silu(x), None, 1e-5)",
    "math and builtins": "result = x * math.sqrt(len(x.shape)) + max(1, 2) * math.pi",
    "a static method": "result = nn.MultiHeadAttention.create_additive_causal_mask(4, x.dtype)",
    "a method by its class": "result = mx.array.astype(x, mx.float16)",
    "constants": "result = mx.where(x > 0, x, -mx.inf) + mx.finfo(x.dtype).min + mx.array([1.0])",
    "lambdas and maps": "f = lambda a: mx.square(a)\nresult = tuple(map(f, (x, x)))",
    "functions as values": "result = tuple(map(mx.square, (x, x)))",
    "loops": "ys = []\nfor i in range(3):\n    ys.append(x * i)\nresult = mx.stack(ys)",
    "own imports": "import mlx.core.fast as F\nfrom mlx import nn as net\nresult = F.rms_norm(net.silu(x), None, 1e-5)",
    "an attribute of an input": "result = x * self.scale + self.args.eps",
    "checks": "assert x.ndim == 2\nif x.shape[0] > 3:\n    raise ValueError('no')\nresult = x",
    "annotations": "y: mx.array = x\nresult = y",
}
BARRED = {
    "open": "result = open('/etc/passwd')",
    "eval": "result = eval('1')",
    "exec": "exec('1')",
    "import os": "import os\nresult = os",
    "from os": "from os import system\nresult = system('true')",
    "importlib": "result = __import__('os')",
    "dunder attribute": "result = x.__class__",
    "dunder of a module": "result = mx.__dict__",
    "private of a module": "result = mx._secret",
    "subclasses": "result = ().__class__.__base__.__subclasses__()",
    "save": "mx.save('f', x)\nresult = x",
    "load": "result = mx.load('f')",
    "export": "mx.export_function('f', x)\nresult = x",
    "loading by a layer's class": "nn.Linear.load_weights(x, 'f')\nresult = x",
    "a layer's base": "result = nn.Module",
    "global device": "mx.set_default_device(mx.cpu)\nresult = x",
    "a module as a value": "y = mx\nresult = y.load('f')",
    "a submodule as a value": "y = mx.fast\nresult = x",
    "getattr": "result = getattr(x, 'shape')",
    "format": "result = '{0.shape}'.format(x)",
    "frames": "result = (lambda: 1).gi_frame",
    "try": "try:\n    result = x\nexcept ValueError:\n    pass",
    "with": "with mx.stream(mx.cpu):\n    result = x",
    "global": "def f():\n    global x\nresult = x",
    "delete": "result = x\ndel x",
    "yield": "def f():\n    yield 1\nresult = f()",
    "async": "async def f():\n    pass\nresult = x",
    "unknown name": "result = helper(x)",
    "unknown method": "result = self.proj(x)",
    "deep unknown method": "result = self.cache.update_and_fetch(x)",
    "numpy": "import numpy as np\nresult = np.sqrt(2)",
    "init": "class A:\n    def __init__(self):\n        pass\nresult = x",
    "named dunder": "def f(__builtins__):\n    return 1\nresult = x",
    "no python": "result = = x",
    "zero byte": "result = x\0",
}
NAMES = ("x", "self.scale", "self.args.eps")


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name):
    vet(ALLOWED[name], "", NAMES)


@pytest.mark.parametrize("name", BARRED)
def test_barred(name):
    with pytest.raises(Barred) as why:
        vet(BARRED[name], "", NAMES)
    assert str(why.value)


def test_the_reason_names_the_call():
    with pytest.raises(Barred, match=r"calls self\.cache\.update_and_fetch"):
        vet(BARRED["deep unknown method"], "", NAMES)
    with pytest.raises(Barred, match=r"calls mx\.save"):
        vet(BARRED["save"], "", NAMES)


def test_support_is_checked_too():
    helper = "class Self:\n    def _norm(self, x):\n        return {}(x)\n"
    vet("result = self._norm(x)", helper.format("mx.square"), NAMES)
    with pytest.raises(Barred, match=r"calls mx\.save"):
        vet("result = self._norm(x)", helper.format("mx.save"), NAMES)
    vet("result = f(x)", "@partial(mx.compile, shapeless=True)\ndef f(x):\n    return nn.silu(x)\n", NAMES)
    vet("result = f(x)", "@functools.partial(mx.compile, shapeless=True)\ndef f(x):\n    return nn.silu(x)\n", NAMES)
    for text in ("result = functools.cache(x)", "f = functools\nresult = x", "result = functools.partial.__call__"):
        with pytest.raises(Barred):
            vet(text, "", NAMES)


def test_deep_nesting_is_barred_not_a_crash():
    with pytest.raises(Barred):
        vet("result = " + "(" * 5000 + "x" + ")" * 5000, "", NAMES)
