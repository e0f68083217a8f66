"""MLX's functions, the array's operators and `mx.compile`, replaced by ones that tell the recorder of each call.

They are replaced before the user's module is imported, so that `from mlx.core import exp` gets the replaced ones too.
They call MLX as before, and take a note only while a trace is on. Nothing is evaluated from then on.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import mlx.core as mx

from fuselint.trace.recording import ORIGINALS, OWN_KERNEL, RECORDER, NoValue, Recorder, Scope, arrays_in, dtype_name

MODULES = ("", "fast", "linalg", "random", "fft", "distributed")
READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__array__", "__dlpack__")
IN_PLACE = (
    "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "__imatmul__",
    "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__", "__setitem__",
)  # fmt: skip
NOT_COMPUTING = (
    "compile", "disable_compile", "enable_compile", "eval", "async_eval", "grad", "value_and_grad", "vjp", "jvp",
    "vmap", "checkpoint", "custom_function", "export_function", "import_function", "exporter", "export_to_dot", "load",
    "metal_kernel", "cuda_kernel", "precompiled_cuda_kernel", "stream", "synchronize",
)  # fmt: skip
SAVES = ("save", "savez", "savez_compressed", "save_safetensors", "save_gguf")
METHODS_LEFT_ALONE = ("__init__", "__len__", "__getstate__", "__setstate__")


def install() -> Recorder:
    """Replace MLX's functions, once a process."""
    for module in MODULES:
        home = getattr(mx, module) if module else mx
        for name in (n for n in dir(home) if not n.startswith("_")):
            found = getattr(home, name)
            if type(found).__name__ == "nb_func":
                _replace(home, name, f"{module}.{name}".lstrip("."), found)
    for name in dir(mx.array):
        found = getattr(mx.array, name)
        if type(found).__name__ == "nb_method" and name not in METHODS_LEFT_ALONE:
            setattr(mx.array, name, _method(name, found))
    for name in ("T", "mT", "real", "imag"):
        original = getattr(mx.array, name)
        setattr(mx.array, name, property(_recorded(f"array.{name}", original.__get__)))
    mx.custom_function = CustomFunction
    original_at = mx.array.at
    mx.array.at = property(lambda a: At(a, original_at) if RECORDER.on else original_at.__get__(a))
    return RECORDER


def _replace(home: ModuleType | Any, name: str, full: str, original: Any) -> None:
    ORIGINALS[full] = original
    if name in NOT_COMPUTING:
        made = SPECIAL.get(full)
        if made is not None:
            setattr(home, name, functools.wraps(original)(made))
    elif name in SAVES:
        setattr(home, name, _refusing(full, original))
    elif full.startswith("random.") and "key: array | None" in (original.__doc__ or ""):
        setattr(home, name, _random(full, original))
    else:
        setattr(home, name, _recorded(full, original))


def _recorded(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return RECORDER.call(name, original, args, kwargs)

    return call


def _random(name: str, original: Any) -> Any:
    """A random function that is given no key draws one from a key that this module keeps."""
    recorded = _recorded(name, original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on and not RECORDER.exporting:
            return original(*args, **kwargs)
        if kwargs.get("key") is None and not any(_is_key(a) for a in args):
            kwargs = {**kwargs, "key": RECORDER.next_key()}
        return recorded(*args, **kwargs)

    return call


def _is_key(argument: Any) -> bool:
    return isinstance(argument, mx.array) and argument.dtype == mx.uint32 and argument.shape == (2,)


def _method(name: str, original: Any) -> Any:
    full = f"array.{name}"
    if name in READS:
        return _refusing(full, original)
    if name in ("__repr__", "__str__", "__format__"):
        return _described(original)
    if name == "__iter__":
        rows = _recorded(full, lambda a: list(original(a)))
        return lambda a: iter(rows(a)) if RECORDER.on else original(a)
    if name in IN_PLACE:

        @functools.wraps(original)
        def change(*args: Any) -> Any:
            return RECORDER.run(full, original, args, {}, changes=0) if RECORDER.on else original(*args)

        return change
    return _recorded(full, original)


def _described(original: Any) -> Any:
    """The text of an array, without its numbers while a trace is on."""

    @functools.wraps(original)
    def call(a: Any, *args: Any) -> Any:
        return f"array({list(a.shape)}, dtype={dtype_name(a.dtype)})" if RECORDER.on else original(a, *args)

    return call


def _refusing(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if RECORDER.on and any(_is_computed(a) for a in arrays_in((args, kwargs))):
            raise NoValue(f"{name.removeprefix('array.').strip('_')} reads the numbers in an array")
        return original(*args, **kwargs)

    return call


def _is_computed(array: Any) -> bool:
    """Whether reading the array would run the traced code: not so for one that was there before."""
    known = RECORDER.values.get(id(array))
    return known is not None and known[1].call is not None


class At:
    """`x.at[i].add(v)`: one call, recorded when its value is made."""

    def __init__(self, array: Any, at: Any, index: Any = None) -> None:
        self._array, self._at, self._index = array, at, index

    def __getitem__(self, index: Any) -> At:
        return At(self._array, self._at, index)

    def __getattr__(self, name: str) -> Any:
        def update(value: Any) -> Any:
            def call(array: Any, index: Any, v: Any) -> Any:
                return getattr(self._at.__get__(array)[index], name)(v)

            return RECORDER.run(f"array.at.{name}", call, (self._array, self._index, value), {})

        return update


# -- functions that take functions -------------------------------------------------------------------------------------


class Compiled:
    """A function under mx.compile. Like MLX's own it is no method: a class attribute of this type isn't bound."""

    def __init__(self, function: Any, outputs: Any, shapeless: bool) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function, self._outputs, self._shapeless = function, outputs, shapeless

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on or RECORDER.scope is not None:  # inside another one it is inlined
            return self._function(*args, **kwargs)
        scope = Scope(getattr(self._function, "__name__", "?"), self._shapeless)
        RECORDER.scope = scope
        try:
            result = self._function(*args, **kwargs)
        finally:
            RECORDER.scope = None
        scope.outputs = [RECORDER.value(a) for a in arrays_in((result, self._outputs))]
        return result


def _compile(fun: Any, inputs: Any = None, outputs: Any = None, shapeless: bool = False) -> Any:
    return Compiled(fun, outputs, shapeless)


def _transform(name: str) -> Any:
    """`mx.grad` and its like: forward and backward together are one call, which MLX exports as a whole."""

    def make(fun: Any, *options: Any, **more: Any) -> Any:
        transformed = ORIGINALS[name](_without_marks(fun) if name == "vmap" else fun, *options, **more)

        @functools.wraps(fun)
        def call(*args: Any, **kwargs: Any) -> Any:
            return RECORDER.run(name, transformed, args, kwargs) if RECORDER.on else transformed(*args, **kwargs)

        return call

    return make


def _without_marks(fun: Any) -> Any:
    """mx.vmap can't map marks."""

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        before, RECORDER.marks = RECORDER.marks, None
        try:
            return fun(*args, **kwargs)
        finally:
            RECORDER.marks = before

    return call


class CustomFunction:
    """A function with a gradient of its own: forward it is what it is."""

    def __init__(self, fun: Any) -> None:
        functools.update_wrapper(self, fun, updated=())
        self._fun = fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fun(*args, **kwargs)

    def vjp(self, fun: Any) -> Any:
        return fun

    jvp = vmap = vjp


def _evaluate() -> Any:
    """Evaluates nothing, before the traced call neither: only notes where a pass would be cut."""

    def call(*args: Any, **kwargs: Any) -> Any:
        known = RECORDER.evaluations
        if RECORDER.on and (not known or known[-1] != len(RECORDER.calls)):
            known.append(len(RECORDER.calls))

    return call


def _kernel() -> Any:
    """mx.fast.metal_kernel and its like: a kernel of the user's own is one launch, and needs no GPU to be counted."""

    def make(*args: Any, **kwargs: Any) -> Any:
        title = str(kwargs.get("name", args[0] if args else "kernel"))

        def lazily(**given: Any) -> list[Any]:
            shapes, dtypes = given["output_shapes"], given["output_dtypes"]
            return [mx.zeros(s, d) for s, d in zip(shapes, dtypes, strict=True)]

        def call(**given: Any) -> Any:
            return RECORDER.run(f"{OWN_KERNEL}{title}", lazily, (), given) if RECORDER.on else lazily(**given)

        return call

    return make


SPECIAL: dict[str, Any] = {
    "compile": _compile,
    "eval": _evaluate(),
    "async_eval": _evaluate(),
    "synchronize": lambda *args, **kwargs: None,
    "checkpoint": lambda fun: fun,
    **{name: _transform(name) for name in ("grad", "value_and_grad", "vmap")},
    **{name: _recorded(name, lambda *args, name=name: ORIGINALS[name](*args)) for name in ("vjp", "jvp")},
    "fast.metal_kernel": _kernel(),
    "fast.cuda_kernel": _kernel(),
    "fast.precompiled_cuda_kernel": _kernel(),
}
