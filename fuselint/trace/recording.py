"""Every call of MLX that the traced code makes, with its operands, its results and the lines that led there.

`mlx.core`'s functions, the array's operators and `mx.compile` are replaced before the user's module is imported, so
that `from mlx.core import exp` gets the replaced ones too. They call MLX as before; while a trace is on they also take
a note. Arrays are known by their Python object, which the recorder keeps alive; an object that is changed in place
stands for another value from then on.
"""

from __future__ import annotations

import functools
import io
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

import mlx.core as mx

OUR_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
MLX_FOLDER = os.path.dirname(os.path.abspath(mx.__file__)) + os.sep
LIBRARY = sysconfig.get_path("stdlib") + os.sep
INSTALLED = tuple({sysconfig.get_path(p) + os.sep for p in ("purelib", "platlib")})


class NoValue(RuntimeError):
    """The traced code asked for the numbers in an array: a trace computes none."""


@dataclass(eq=False, slots=True)
class Activation:
    """One run of a function of the traced code. `locals`: its names at the first MLX call."""

    path: str
    name: str
    first_line: int
    frame: FrameType
    locals: dict[str, Any]
    lines: set[int] = field(default_factory=set)


Place = tuple[tuple[Activation, int], ...]
"""The lines that led to a call, the innermost first."""


@dataclass(eq=False, slots=True)
class Value:
    """An array at one moment. call: what computed it, None for one from outside."""

    shape: tuple[int, ...]
    dtype: str
    call: Call | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """Where an array stood among the arguments of a call."""

    index: int


@dataclass(eq=False, slots=True)
class Scope:
    """One call of a function under mx.compile: what it computes is fused by itself."""

    name: str
    shapeless: bool
    outputs: list[Value] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Call:
    """One call of MLX. args, kwargs: its arguments, with a Ref for each array; `function` runs it again."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[Value]
    place: Place
    scope: Scope | None
    outputs: list[Value] = field(default_factory=list)
    changes: int | None = None  # the argument that it changes in place


@dataclass(eq=False)
class Recorder:
    """`mx` as the traced code sees it. `evaluations`: after how many calls each mx.eval came."""

    on: bool = False
    calls: list[Call] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    scope: Scope | None = None
    values: dict[int, tuple[Any, Value]] = field(default_factory=dict)
    activations: dict[FrameType, Activation] = field(default_factory=dict)
    key: Any = None

    # -- values -------------------------------------------------------------------------------------------------------

    def value(self, array: Any) -> Value:
        """What the array holds now; one that no recorded call made comes from outside."""
        known = self.values.get(id(array))
        if known is not None:
            return known[1]
        return self.set(array, self.maker(array) if self.on else None)

    def maker(self, array: Any) -> Call | None:
        """What made an array out of recorded ones where no call was seen to, such as `mx.array(x, dtype)`."""
        names = {f"v{number}": a for number, (a, _) in self.values.items()}
        primitive, sources = origin(array, names)
        if not sources:
            return None
        inputs = [self.values[int(name[1:])][1] for name in sources]
        refs = tuple(map(Ref, range(len(inputs))))
        call = Call(f"array.{primitive}", unseen, refs, {}, inputs, self.place(), self.scope)
        self.calls.append(call)
        return call

    def set(self, array: Any, call: Call | None) -> Value:
        value = Value(tuple(array.shape), dtype_name(array.dtype), call)
        if call is not None and not call.outputs:
            call.outputs = [value]
        self.values[id(array)] = (array, value)
        return value

    # -- calls --------------------------------------------------------------------------------------------------------

    def run(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, changes: int | None = None) -> Any:
        """Call MLX, and take a note of it where arrays come out."""
        inputs: list[Value] = []
        noted_args, noted_kwargs = self.noted(args, inputs), self.noted(kwargs, inputs)
        self.on = False
        try:
            result = function(*args, **kwargs)
        finally:
            self.on = True
        arrays = list(arrays_in(args[changes] if changes is not None else result))
        if arrays:
            call = Call(name, function, noted_args, noted_kwargs, inputs, self.place(), self.scope, changes=changes)
            made = [self.set(a, call) for a in arrays]
            call.outputs = made
            self.calls.append(call)
        return result

    def noted(self, argument: Any, inputs: list[Value]) -> Any:
        """The argument with a Ref for each array in it."""
        if isinstance(argument, mx.array):
            inputs.append(self.value(argument))
            return Ref(len(inputs) - 1)
        if isinstance(argument, (list, tuple)):
            return type(argument)(self.noted(a, inputs) for a in argument)
        if isinstance(argument, dict):
            return {k: self.noted(a, inputs) for k, a in argument.items()}
        return argument

    def place(self) -> Place:
        frames = list(self.frames())
        own = [f for f in frames if is_users(f.f_code.co_filename)] or frames
        return tuple((self.activation(f), f.f_lineno) for f in own)

    def frames(self) -> Iterator[FrameType]:
        """From the caller of MLX outwards to the traced call, without this package's own."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not frame.f_code.co_filename.startswith(OUR_FOLDER):
                yield frame
            frame = frame.f_back

    def activation(self, frame: FrameType) -> Activation:
        known = self.activations.get(frame)
        if known is None:
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)
            known = Activation(code.co_filename, name, code.co_firstlineno, frame, dict(frame.f_locals))
            self.activations[frame] = known
        known.lines.add(frame.f_lineno)
        return known

    # -- random numbers -----------------------------------------------------------------------------------------------

    def next_key(self) -> Any:
        """As MLX splits its global key for each random call. The user's global key stays as it is."""
        if self.key is None:
            self.key = mx.array([0, 0], mx.uint32)
        self.key, drawn = self.run("random.split", _split_key, (self.key,), {})
        return drawn


RECORDER = Recorder()
ORIGINALS: dict[str, Any] = {}
"""MLX's own functions, by their names below `mx`."""


def unseen(*arrays: Any) -> Any:
    """Stands for a call that was not seen."""
    raise NotImplementedError


def origin(array: Any, names: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The primitive that makes an array, and which of the named arrays the graph behind it starts from."""
    if "->" not in _dot(array):
        return "", []
    text = _dot(array, **names, found=array)
    labels = dict(re.findall(r'(\d+) \[label ="([^"]*)"', text))
    before: dict[str, list[str]] = {}
    for source, to in re.findall(r'"?([^"\s]+)"? -> "?([^"\s]+)"?', text):
        before.setdefault(to, []).append(source)
    made_by = before.get("found", [])
    sources: dict[str, None] = {}
    stack, seen = list(made_by), set(made_by)
    while stack:
        node = stack.pop()
        if node in names:
            sources[node] = None
            continue
        stack.extend(n for n in before.get(node, ()) if n not in seen)
        seen.update(before.get(node, ()))
    return labels.get(made_by[0], ""), list(sources)


def _dot(array: Any, **names: Any) -> str:
    text = io.StringIO()
    mx.export_to_dot(text, array, **names)
    return text.getvalue()


def _split_key(key: Any) -> list[Any]:
    """Two keys of one, in the primitives of MLX's own KeySequence."""
    return [mx.reshape(half, (2,)) for half in mx.split(mx.random.split(key), 2)]


def dtype_name(dtype: Any) -> str:
    """MLX's dtype by the name that the graph uses."""
    name = str(dtype).rpartition(".")[2]
    return "bool_" if name == "bool" else name


def arrays_in(tree: Any) -> Iterator[Any]:
    """The arrays of lists, tuples and dicts, modules too."""
    if isinstance(tree, mx.array):
        yield tree
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from arrays_in(item)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from arrays_in(item)


def is_users(path: str) -> bool:
    """Whether a file is the traced code's own: not Python's, not MLX's, nothing made up."""
    if path.startswith(("<", MLX_FOLDER, OUR_FOLDER)):
        return False
    return not path.startswith(LIBRARY) or path.startswith(INSTALLED)


# -- replacing MLX's functions -----------------------------------------------------------------------------------------

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
        return RECORDER.run(name, original, args, kwargs) if RECORDER.on else original(*args, **kwargs)

    return call


def _random(name: str, original: Any) -> Any:
    """A random function that is given no key draws one from a key that this module keeps."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on:
            return original(*args, **kwargs)
        if kwargs.get("key") is None and not any(_is_key(a) for a in args):
            kwargs = {**kwargs, "key": RECORDER.next_key()}
        return RECORDER.run(name, original, args, kwargs)

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
        transformed = ORIGINALS[name](fun, *options, **more)

        @functools.wraps(fun)
        def call(*args: Any, **kwargs: Any) -> Any:
            return RECORDER.run(name, transformed, args, kwargs) if RECORDER.on else transformed(*args, **kwargs)

        return call

    return make


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


def _evaluate(name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on:
            return ORIGINALS[name](*args, **kwargs)
        for a in arrays_in(args):
            RECORDER.value(a)
        if not RECORDER.evaluations or RECORDER.evaluations[-1] != len(RECORDER.calls):
            RECORDER.evaluations.append(len(RECORDER.calls))
        return None

    return call


def _kernel(name: str) -> Any:
    """mx.fast.metal_kernel and its like: a kernel of the user's own is one launch, and needs no GPU to be counted."""

    def make(*args: Any, **kwargs: Any) -> Any:
        title = str(kwargs.get("name", args[0] if args else "kernel"))

        def lazily(**given: Any) -> list[Any]:
            shapes, dtypes = given["output_shapes"], given["output_dtypes"]
            return [mx.zeros(s, d) for s, d in zip(shapes, dtypes, strict=True)]

        def call(**given: Any) -> Any:
            return RECORDER.run(f"fast.{name}:{title}", lazily, (), given) if RECORDER.on else lazily(**given)

        return call

    return make


SPECIAL: dict[str, Any] = {
    "compile": _compile,
    "eval": _evaluate("eval"),
    "async_eval": _evaluate("async_eval"),
    "synchronize": lambda *args, **kwargs: None,
    "checkpoint": lambda fun: fun,
    **{name: _transform(name) for name in ("grad", "value_and_grad", "vmap")},
    **{name: _recorded(name, lambda *args, name=name: ORIGINALS[name](*args)) for name in ("vjp", "jvp")},
    "fast.metal_kernel": _kernel("metal_kernel"),
    "fast.cuda_kernel": _kernel("cuda_kernel"),
    "fast.precompiled_cuda_kernel": _kernel("precompiled_cuda_kernel"),
}


def arrays_held(objects: Iterable[Any]) -> Iterator[Any]:
    """Arrays that objects hold: in trees, modules, and the attributes of other objects, such as caches."""
    seen: set[int] = set()
    stack = list(objects)
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, (str, bytes, int, float, type, ModuleType)):
            continue
        seen.add(id(item))
        if isinstance(item, mx.array):
            yield item
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set)):
            stack.extend(item)
        elif callable(item):
            continue
        if not isinstance(item, mx.array):
            stack.extend(getattr(item, "__dict__", {}).values())
