"""What MLX itself launches: each kernel with the bytes that it reads and writes, from running the code on MLX.

Primitives, shapes and dtypes are those that `mx.export_function` reports of every call by itself: over a whole function
it would merge computations that eager MLX repeats. Where the arrays lie, and so which reshapes copy, is read from the
arrays that MLX computes. What is under mx.compile is exported as a whole; which primitives become one kernel follows
from `fuse.py` on that export, and is compared with the graph that MLX compiled.
"""

from __future__ import annotations

import ctypes
import functools
import io
import math
import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from fuselint.graph import fuse
from fuselint.graph.shapes import Shape
from fuselint.graph.tape import RESHAPES, VIEWS, Array

KernelBytes = tuple[str, int, int]
"""A kernel's name, the bytes it reads, the bytes it writes."""

EXPORTED = {"Rsqrt": "Sqrt", "Log2": "Log", "Log10": "Log", "CumSum": "Scan", "CumProd": "Scan", "CumMax": "Scan",
            "CumMin": "Scan", "CumLogaddexp": "Scan", "NaNEqual": "Equal", "Sum": "Reduce", "Max": "Reduce",
            "Min": "Reduce", "Prod": "Reduce", "And": "Reduce", "Or": "Reduce", "BitwiseAnd": "BitwiseBinary",
            "BitwiseOr": "BitwiseBinary", "BitwiseXor": "BitwiseBinary"}  # fmt: skip
"""What mx.export_to_dot names more precisely than mx.export_function."""


# -- arrays in memory --------------------------------------------------------------------------------------------------


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_capsule.restype, _capsule.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


@dataclass(frozen=True)
class Place:
    """Where an array lies: the address of its buffer, and the elements of it that it holds."""

    buffer: int
    offset: int  # in bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @staticmethod
    def of(a: mx.array) -> Place:
        mx.eval(a)
        capsule = a.__dlpack__()
        t = ctypes.cast(_capsule(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
        strides = tuple(t.strides[i] for i in range(t.ndim))
        return Place(t.data, t.offset, tuple(a.shape), strides, a.itemsize)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(s for n, s in zip(self.shape, self.strides, strict=True) if n != 1)

    @functools.cached_property
    def elements(self) -> bytes:
        """The addresses of all elements, each once."""
        at = np.array([self.buffer + self.offset], dtype=np.int64)
        for n, s in zip(self.shape, self.strides, strict=True):
            if s and n != 1:
                at = np.add.outer(at, np.arange(n, dtype=np.int64) * s * self.itemsize).ravel()
            elif n == 0:
                at = at[:0]
        return np.unique(at).tobytes()

    @property
    def bytes(self) -> int:
        return len(self.elements) // 8 * self.itemsize

    # As MLX's own flags.

    @property
    def row_contiguous(self) -> bool:
        return _dense(reversed(self.shape), reversed(self.strides))

    @property
    def col_contiguous(self) -> bool:
        return _dense(self.shape, self.strides)

    @property
    def contiguous(self) -> bool:
        """No holes: as many elements as lie between the first and the last."""
        span = 1 + sum(abs(s) * (n - 1) for n, s in zip(self.shape, self.strides, strict=True))
        return all(s >= 0 for s in self.strides) and len(self.elements) // 8 == span


def _dense(shape: Any, strides: Any) -> bool:
    step = 1
    for n, s in zip(shape, strides, strict=True):
        if n != 1 and s != step:
            return False
        step *= n
    return True


# -- one primitive -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Value:
    """An array of the recorded graph. constant: a Python number's, which no kernel reads from memory."""

    array: mx.array
    constant: bool = False

    @functools.cached_property
    def place(self) -> Place:
        return Place.of(self.array)


@dataclass(eq=False)
class Step:
    """A primitive, or several in one kernel, that ran."""

    name: str
    inputs: list[Value]
    outputs: list[Value]
    is_kernel: bool

    def moved(self) -> KernelBytes:
        """Each distinct input once; of what a gather takes from, as much as it takes."""
        written = sum(v.place.bytes for v in self.outputs)
        read = {v.place.elements: v.place.bytes for v in self.inputs if not v.constant}
        if self.name in TAKING:
            read[self.inputs[0].place.elements] = written
        return self.name, sum(read.values()), written


TAKING = frozenset({"Gather", "GatherAxis", "DynamicSlice"})


def _launches(name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    """Whether a primitive is a kernel; a reshape is one where it copies."""
    if name in RESHAPES:
        return inputs[0].place.buffer != outputs[0].place.buffer
    return name not in VIEWS


REPLAYED: dict[str, Callable[..., Any]] = {
    "Broadcast": lambda x, *rest: mx.broadcast_to(x[0], tuple(rest[0])),
    "Transpose": lambda x, axes: mx.transpose(x[0], axes),
    "Reshape": lambda x, shape: mx.reshape(x[0], shape),
    "Flatten": lambda x, start, end: mx.flatten(x[0], start, end),
    "Unflatten": lambda x, axis, shape: mx.unflatten(x[0], axis, shape),
    "ExpandDims": lambda x, axes: mx.expand_dims(x[0], axes),
    "Squeeze": lambda x, axes: mx.squeeze(x[0], axes),
    "Slice": lambda x, start, stop, step: x[0][tuple(_slice(*p) for p in zip(start, stop, step, strict=True))],
    "Split": lambda x, at, axis: mx.split(x[0], list(at), axis),
    "AsType": lambda x, dtype: x[0].astype(dtype),
    "StopGradient": lambda x: x[0],
    "Copy": lambda x: x[0],
    "Softmax": lambda x, *_: mx.softmax(x[0], axis=-1),
    "Sort": lambda x, axis: mx.sort(x[0], axis),
    "Partition": lambda x, kth, axis: mx.partition(x[0], kth, axis),
    "Select": lambda x: mx.where(*x),
    "Equal": lambda x, *_: mx.equal(*x), "NotEqual": lambda x: mx.not_equal(*x),
    "Less": lambda x: mx.less(*x), "LessEqual": lambda x: mx.less_equal(*x),
    "Greater": lambda x: mx.greater(*x), "GreaterEqual": lambda x: mx.greater_equal(*x),
    "LogicalOr": lambda x: mx.logical_or(*x), "LogicalAnd": lambda x: mx.logical_and(*x),
}  # fmt: skip
"""Primitives whose result may lie otherwise than in row order, by the arguments that an export names."""

ELEMENTWISE = frozenset(
    """
    Abs ArcCos ArcCosh ArcSin ArcSinh ArcTan ArcTanh BitwiseInvert Ceil Cos Cosh Erf ErfInv Exp Expm1 Floor Log Log1p
    LogicalNot Negative Round Sigmoid Sign Sin Sinh Sqrt Square Tan Tanh
    """.split()
)
ARITHMETIC = frozenset(
    """
    Add ArcTan2 BitwiseBinary Divide FloorDivide LogAddExp Maximum Minimum Multiply Power Remainder Subtract
    """.split()
)


def _slice(start: int, stop: int, step: int) -> slice:
    return slice(start, None if step < 0 and stop < 0 else stop, step)


def _replay(name: str, x: list[mx.array], arguments: Sequence[Any], shapes: Sequence[tuple[Any, Any]]) -> Any:
    """The primitive's results, at the places where MLX puts them; their numbers don't matter."""
    if name == "BroadcastAxes":
        out = mx.broadcast_to(x[0], tuple(shapes[0][0]))
    elif name in REPLAYED:
        out = REPLAYED[name](x, *arguments)
    elif name in ELEMENTWISE:
        out = mx.logical_not(x[0]) if x[0].dtype == mx.bool_ else mx.negative(x[0])
    elif name in ARITHMETIC:
        out = mx.maximum(x[0], x[1])
    else:
        out = [mx.zeros(s, d) for s, d in shapes]
    out = out if isinstance(out, (list, tuple)) else [out]
    mx.eval(out)
    assert [(tuple(o.shape), o.dtype) for o in out] == [(tuple(s), d) for s, d in shapes], (name, arguments, shapes)
    return list(out)


# -- a call, exported --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Export:
    """What mx.export_function reports: primitives over names."""

    primitives: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    constants: dict[str, mx.array] = field(default_factory=dict)


def export(function: Callable[..., Any], arrays: Sequence[mx.array], shapeless: bool = False) -> Export:
    out = Export()

    def receive(d: dict[str, Any]) -> None:
        if d["type"] == "inputs":
            out.inputs = [n for n, _, _ in d["inputs"]]
        elif d["type"] == "outputs":
            out.outputs = [n for n, _, _ in d["outputs"]]
        elif d["type"] == "constants":
            out.constants = dict(d["constants"])
        elif d["type"] == "primitive":
            out.primitives.append(d)

    mx.export_function(receive, function, *arrays, shapeless=shapeless)
    return out


def _run(exported: Export, given: Sequence[Value]) -> tuple[list[Step], dict[str, Value]]:
    """The export's primitives on real arrays."""
    values: dict[str, Value] = dict(zip(exported.inputs, given, strict=True))
    for name, array in exported.constants.items():
        known = next((v for v in given if v.array is array), None)
        values[name] = known or Value(array, constant=array.ndim == 0)
    steps = []
    for p in exported.primitives:
        inputs = [values[n] for n, _, _ in p["inputs"]]
        shapes = [(s, d) for _, s, d in p["outputs"]]
        arrays = _replay(p["name"], [v.array for v in inputs], p["arguments"], shapes)
        made = [Value(a, constant=p["name"] in VIEWS and inputs[0].constant) for a in arrays]
        values.update({n: v for (n, _, _), v in zip(p["outputs"], made, strict=True)})
        steps.append(Step(p["name"], inputs, made, _launches(p["name"], inputs, made)))
    return steps, values


# -- eager code --------------------------------------------------------------------------------------------------------

COMPILED = type(nn.silu)
UNTOUCHED = frozenset(
    """
    array async_eval checkpoint compile clear_cache custom_function default_device default_stream device_info
    disable_compile enable_compile eval export_function export_to_dot exporter get_active_memory get_cache_memory
    get_peak_memory grad import_function is_available issubdtype jvp load new_stream reset_peak_memory save
    save_gguf save_safetensors savez savez_compressed set_cache_limit set_default_device set_default_stream
    set_memory_limit set_wired_limit stream synchronize value_and_grad vjp vmap
    """.split()
)
METHODS = frozenset(
    """
    __abs__ __add__ __and__ __div__ __floordiv__ __getitem__ __iadd__ __iand__ __ifloordiv__ __imatmul__ __imod__
    __imul__ __invert__ __ior__ __ipow__ __isub__ __itruediv__ __ixor__ __lshift__ __matmul__ __mod__ __mul__ __neg__
    __or__ __pow__ __radd__ __rdiv__ __rfloordiv__ __rmod__ __rmul__ __rpow__ __rshift__ __rsub__ __rtruediv__ __sub__
    __truediv__ __xor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ abs all any argmax argmin astype conj cos cummax
    cummin cumprod cumsum diag diagonal exp flatten log log10 log1p log2 logcumsumexp logsumexp max mean min moveaxis
    prod reciprocal reshape round rsqrt sin split sqrt square squeeze std sum swapaxes transpose var view
    """.split()
)


class Recorder:
    """Runs code eagerly and keeps the primitives of every call."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.values: dict[int, Value] = {}  # by the id of the array that code holds
        self.held: list[mx.array] = []  # so that ids stay unique
        self.inside = False

    def value(self, array: mx.array) -> Value:
        """The value of an array that code holds; one that no recorded call made is a constant."""
        found = self.values.get(id(array))
        if found is None:
            mx.eval(array)
            found = Value(array, constant=array.ndim == 0)
            self.hold(array, found)
        return found

    def hold(self, array: mx.array, value: Value) -> None:
        self.values[id(array)] = value
        self.held.append(array)

    def call(self, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
        if self.inside:
            return function(*args, **keywords)
        self.inside = True
        try:
            return self._record(function, args, keywords)
        finally:
            self.inside = False

    def _record(self, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
        arrays: list[mx.array] = []
        template = _taken_out((args, keywords), arrays, self.value)
        every = {f"given{i}": a for i, a in enumerate(_arrays([args, keywords]))}
        named = {
            n: (a, next(i for i, b in enumerate(arrays) if self.value(b) is self.value(a))) for n, a in every.items()
        }
        given = [self.value(a) for a in arrays]

        def again(*replaced: mx.array) -> Any:
            positional, named = _put_in(template, list(replaced))
            return _arrays(function(*positional, **named))

        if isinstance(function, COMPILED):
            return self._compiled(again, arrays, given)
        out = function(*args, **keywords)
        if not _arrays(out):
            return out
        exported = export(again, arrays)
        steps, values = _run(exported, given)
        self.steps.extend(_repeated(exported, values, steps, out, named))
        mx.eval(out)
        for a, name in zip(_arrays(out), exported.outputs, strict=True):
            made = values[name]
            if made not in given:
                assert Place.of(a).steps == made.place.steps, (function, Place.of(a), made.place)
                made.array = a
                made.__dict__.pop("place", None)
            self.hold(a, made)
        return out

    def _compiled(self, function: Callable[..., Any], arrays: Sequence[mx.array], given: Sequence[Value]) -> mx.array:
        """A function of mlx.nn that MLX compiles."""
        steps, outputs = _fused(export(function, arrays, shapeless=True), given)
        self.steps.extend(steps)
        (out,) = outputs
        self.hold(out.array, out)
        return out.array

    @contextmanager
    def recording(self) -> Iterator[None]:
        patched: list[tuple[Any, str, Any]] = []

        def patch(owner: Any, name: str) -> None:
            original = getattr(owner, name)
            wrapper = (
                functools.wraps(original)(lambda *args, **kw: self.call(original, args, kw))
                if callable(original)
                else property(lambda a: self.call(original.__get__, (a,), {}))
            )
            patched.append((owner, name, original))
            setattr(owner, name, wrapper)

        try:
            for module in (mx, mx.fast, mx.linalg, mx.random, mx.fft):
                for name in dir(module):
                    if type(getattr(module, name)).__name__ == "nb_func" and name not in UNTOUCHED:
                        patch(module, name)
            for name in METHODS:
                patch(mx.array, name)
            for name in ("T", "mT"):
                patch(mx.array, name)
            for module in (nn, nn.layers.activations):
                for name in dir(module):
                    if isinstance(getattr(module, name), COMPILED):
                        patch(module, name)
            yield
        finally:
            for owner, name, original in reversed(patched):
                setattr(owner, name, original)


def _repeated(
    exported: Export, values: dict[str, Value], steps: Sequence[Step], out: Any, named: dict[str, tuple[mx.array, int]]
) -> Iterator[Step]:
    """The steps that really run: an export merges what a call computes twice, a lazy graph doesn't.

    named: every array that the call was given, by a name, with its place among the export's inputs.
    """
    graph = list(_graph(_arrays(out), {n: a for n, (a, _) in named.items()}))
    names = {n: exported.inputs[i] for n, (_, i) in named.items()}
    matched = _matched(graph, exported, names)
    made = {n: values[name] for n, name in names.items()}
    seen: set[int] = set()
    for (_, inputs, outputs), i in zip(graph, matched, strict=True):
        if i < 0:  # a no-op, which the export leaves out
            made.update({o: made[n] for o in outputs for n in inputs if n in made})
            continue
        p = exported.primitives[i]
        given = [(matched_name(n, names, graph, matched, exported), made.get(n)) for n in inputs]
        step = _again(p, steps[i], given, repeated=i in seen)
        seen.add(i)
        made.update(zip(outputs, step.outputs, strict=False))
        yield step


def matched_name(name: str, names: dict[str, str], graph: Any, matched: Sequence[int], exported: Export) -> str:
    """What the export calls an array of the graph."""
    if name in names:
        return names[name]
    for (_, inputs, outputs), i in zip(graph, matched, strict=True):
        if name in outputs:
            if i < 0:
                return matched_name(inputs[0], names, graph, matched, exported)
            return str(exported.primitives[i]["outputs"][outputs.index(name)][0])
    return CONSTANT


def _matched(graph: Sequence[tuple[str, list[str], list[str]]], exported: Export, names: dict[str, str]) -> list[int]:
    """For each primitive of a lazy graph, which of the export's it is; -1 for a no-op. Tried until all fit."""
    plain = {n: CONSTANT for n in exported.constants}
    by_key: dict[tuple[str, frozenset[str]], list[int]] = {}
    for i, p in enumerate(exported.primitives):
        inputs = frozenset(plain.get(n, n) for n, _, _ in p["inputs"])
        if p["name"] == "Broadcast" and inputs == {CONSTANT}:
            plain[p["outputs"][0][0]] = CONSTANT
        by_key.setdefault((p["name"], inputs), []).append(i)

    def fit(at: int, made: dict[str, str], chosen: list[int]) -> list[int] | None:
        if at == len(graph):
            return chosen if set(chosen) >= set(range(len(exported.primitives))) else None
        label, inputs, outputs = graph[at]
        mapped = [made.get(n, CONSTANT) for n in inputs]
        if label in fuse.NO_OPS:
            return fit(at + 1, made | dict.fromkeys(outputs, mapped[0]), [*chosen, -1])
        for i in sorted(by_key.get((label, frozenset(mapped)), ()), key=chosen.count):
            results = [plain.get(n, n) for n, _, _ in exported.primitives[i]["outputs"]]
            found = fit(at + 1, made | dict(zip(outputs, results, strict=False)), [*chosen, i])
            if found is not None:
                return found
        return None

    found = fit(0, dict(names), [])
    assert found is not None, ([g[0] for g in graph], [p["name"] for p in exported.primitives])
    return found


CONSTANT = "constant"


def _again(p: dict[str, Any], step: Step, mapped: Sequence[tuple[str, Value | None]], *, repeated: bool) -> Step:
    """The step on operands that may have been made again; where it is made again itself, with results of its own."""
    left = list(mapped)
    inputs = []
    for (name, _, _), before in zip(p["inputs"], step.inputs, strict=True):
        found = next((m for m in left if m[0] == name and m[1] is not None), None)
        if found is not None and sum(m[0] == name for m in left) > 1:
            left.remove(found)
        inputs.append(found[1] if found is not None and found[1] is not None else before)
    if not repeated:
        return Step(step.name, inputs, step.outputs, step.is_kernel)
    shapes = [(s, d) for _, s, d in p["outputs"]]
    arrays = _replay(p["name"], [v.array for v in inputs], p["arguments"], shapes)
    made = [Value(a, constant=v.constant) for a, v in zip(arrays, step.outputs, strict=True)]
    return Step(step.name, inputs, made, _launches(step.name, inputs, made))


CONSTANT = "constant"


def _graph(outputs: Sequence[mx.array], named: dict[str, mx.array]) -> Iterator[tuple[str, list[str], list[str]]]:
    """The primitives of a lazy graph in order: label, names of inputs, names of outputs."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs, **named)
    label, inputs, results = "", [], []
    for line in dot.getvalue().splitlines():
        if found := re.search(r'label ="([^"]*)"', line):
            if label:
                yield label, inputs, results
            label, inputs, results = _exported(found.group(1)), [], []
        elif found := re.match(r'"([^"]*)" -> \d+', line):
            inputs.append(found.group(1))
        elif found := re.match(r'\d+ -> "([^"]*)"', line):
            results.append(found.group(1))
    if label:
        yield label, inputs, results


def labels(outputs: Sequence[mx.array]) -> list[str]:
    """The primitives of a lazy graph, by the names of mx.export_function."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    return [_exported(n) for n in re.findall(r'label ="([^"]*)"', dot.getvalue())]


def _exported(name: str) -> str:
    if not name.startswith("Compiled"):
        return EXPORTED.get(name, name)
    for precise in ("Rsqrt", "Log2", "Log10", "NaNEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        name = name.replace(precise, EXPORTED[precise])
    return name


def _taken_out(tree: Any, arrays: list[mx.array], value: Callable[[mx.array], Value]) -> Any:
    """The tree with a hole in place of each array; one that stands there twice is one array."""
    if isinstance(tree, mx.array):
        at = next((i for i, a in enumerate(arrays) if value(a) is value(tree)), len(arrays))
        if at == len(arrays):
            arrays.append(tree)
        return _Hole(at)
    if isinstance(tree, dict):
        return {k: _taken_out(v, arrays, value) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_taken_out(v, arrays, value) for v in tree)
    return tree


@dataclass(frozen=True)
class _Hole:
    index: int


def _put_in(tree: Any, arrays: Sequence[mx.array]) -> Any:
    if isinstance(tree, _Hole):
        return arrays[tree.index]
    if isinstance(tree, dict):
        return {k: _put_in(v, arrays) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_put_in(v, arrays) for v in tree)
    return tree


def _arrays(tree: Any) -> list[mx.array]:
    if isinstance(tree, mx.array):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [a for part in parts for a in _arrays(part)]


def eager(function: Callable[..., Any], arguments: Sequence[Any]) -> Counter[KernelBytes]:
    """The kernels that a call of the function launches."""
    mx.eval(_arrays(list(arguments)))
    recorder = Recorder()
    for a in _arrays(list(arguments)):
        recorder.hold(a, Value(a))
    with recorder.recording():
        out = function(*arguments)
    needed = _needed(recorder.steps, [recorder.value(a) for a in _arrays(out)])
    return Counter(s.moved() for s in needed if s.is_kernel)


def _needed(steps: Sequence[Step], outputs: Sequence[Value]) -> list[Step]:
    """What the outputs are made of: MLX runs nothing else."""
    read = set(outputs)
    kept = []
    for s in reversed(steps):
        if any(o in read for o in s.outputs):
            kept.append(s)
            read.update(s.inputs)
    return kept[::-1]


# -- compiled code -----------------------------------------------------------------------------------------------------


def compiled(
    function: Callable[..., Any], arguments: Sequence[mx.array], shapeless: bool = False
) -> Counter[KernelBytes]:
    """The kernels of a call of `mx.compile(function)`. ValueError where shapeless compilation refuses an op."""
    mx.eval(list(arguments))
    exported = export(lambda *x: _arrays(function(*x)), arguments, shapeless)
    given = [Value(a) for a in arguments]
    steps, _ = _fused(exported, given)
    really = _in_child(lambda: _compiled_web(function, arguments, shapeless))
    assert _web(_of_steps(steps, given)) == really
    return Counter(s.moved() for s in steps if s.is_kernel)


def _compiled_web(function: Callable[..., Any], arguments: Sequence[mx.array], shapeless: bool) -> Counter[int]:
    lazy = _arrays(mx.compile(function, shapeless=shapeless)(*arguments))
    return _web(_graph(lazy, {f"given{i}": a for i, a in enumerate(arguments)}))


def _in_child(work: Callable[[], Counter[int]]) -> Counter[int]:
    """The result of work in a child process: shapeless compilation of MLX 0.32.4 crashes on some functions."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = pickle.dumps(work())
        except ValueError as e:
            answer = pickle.dumps(str(e))
        with os.fdopen(write, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    result = pickle.loads(answer) if answer else "MLX crashes"
    if isinstance(result, str):
        raise ValueError(result)
    return result


def _of_steps(steps: Sequence[Step], given: Sequence[Value]) -> Iterator[tuple[str, list[str], list[str]]]:
    names = {v: f"given{i}" for i, v in enumerate(given)}
    for s in steps:
        for v in (*s.inputs, *s.outputs):
            names.setdefault(v, f"v{len(names)}")
        yield s.name, [names[v] for v in s.inputs], [names[v] for v in s.outputs]


def _web(graph: Iterable[tuple[str, list[str], list[str]]]) -> Counter[int]:
    """Each kernel or view with all that it is made of: two graphs with equal webs are the same graph."""
    made: dict[str, int] = {}
    web: Counter[int] = Counter()
    for label, inputs, outputs in graph:
        key = hash((label, frozenset(made.get(n, hash(n) if n.startswith("given") else 0) for n in inputs)))
        web[key] += 1
        made.update(dict.fromkeys(outputs, key))
    return web


def _fused(exported: Export, given: Sequence[Value]) -> tuple[list[Step], list[Value]]:
    """The export's primitives, grouped into kernels, on real arrays; and its outputs."""
    tape: dict[str, Array] = {}
    primitive: dict[Array, dict[str, Any]] = {}

    def known(name: str, shape: Any, dtype: Any) -> Array:
        if name not in tape:
            tape[name] = Array("", [], Shape.of(*shape), str(dtype))
        return tape[name]

    for p in exported.primitives:
        inputs = [known(*i) for i in p["inputs"]]
        for n, shape, dtype in p["outputs"]:
            tape[n] = Array(p["name"], inputs, Shape.of(*shape), str(dtype))
            primitive[tape[n]] = p
    for n, v in zip(exported.inputs, given, strict=True):
        known(n, v.array.shape, v.array.dtype)
    outputs = [tape[n] for n in exported.outputs]
    values: dict[Array, Value] = {tape[n]: v for n, v in zip(exported.inputs, given, strict=True)}
    for n, array in exported.constants.items():
        if n in tape:
            held = next((v for v in given if v.array is array), None)
            values[tape[n]] = held or Value(array, constant=array.ndim == 0)
    steps: list[Step] = []
    ran: set[int] = set()
    for g in fuse.grouped(outputs):
        p = primitive[g.root]
        if id(p) in ran:
            continue
        ran.add(id(p))
        if g.fused:
            arrays = _written(g, values)
            made = dict(zip(g.outputs, arrays, strict=True))
        else:
            shapes = [(s, d) for _, s, d in p["outputs"]]
            replayed = _replay(p["name"], [values[a].array for a in g.inputs], p["arguments"], shapes)
            made = {tape[n]: a for (n, _, _), a in zip(p["outputs"], replayed, strict=True)}
        inputs = [values[a] for a in g.inputs]
        constant = g.name in VIEWS and bool(inputs) and inputs[0].constant
        out = [Value(a, constant) for a in made.values()]
        values.update(zip(made, out, strict=True))
        steps.append(Step(g.name, inputs, out, g.fused or _launches(g.name, inputs, out)))
    return steps, [values[o] for o in outputs]


def _written(g: fuse.Group, values: dict[Array, Value]) -> list[mx.array]:
    """What a fused kernel writes, at the places where MLX puts it: mlx/backend/common/compiled.cpp."""
    inputs = [values[a].place for a in g.inputs if not values[a].constant]
    arrays = [p for p in inputs if p.shape]
    shape = tuple(d.value() or 0 for d in g.root.shape.dims) if g.root.shape is not None else ()
    same = all(p.shape == shape for p in arrays)
    kept = (
        (same and all(p.contiguous for p in arrays))
        if len(arrays) == 1
        else same and (all(p.row_contiguous for p in arrays) or all(p.col_contiguous for p in arrays))
        if arrays
        else not shape
    )
    strides = next((p.strides for p in arrays if math.prod(p.shape) == math.prod(shape)), None) if kept else None
    out = []
    for a in g.outputs:
        dtype = getattr(mx, a.dtype.rsplit(".", 1)[-1].replace("bool", "bool_"))
        if strides is None:
            made = mx.zeros(shape, dtype)
        else:
            span = 1 + sum(s * (n - 1) for n, s in zip(shape, strides, strict=True))
            made = mx.as_strided(mx.zeros((span,), dtype), shape, strides)
        mx.eval(made)
        out.append(made)
    return out
