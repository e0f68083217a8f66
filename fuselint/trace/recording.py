"""Every call of MLX that the traced code makes, with its operands, its results and the lines that led there.

The functions that replace MLX's own (replacing.py) call the recorder. Arrays are known by their Python object, which
the recorder keeps alive; an object that is changed in place stands for another value from then on.
"""

from __future__ import annotations

import io
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
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
    """`mx` as the traced code sees it. `evaluations`: after how many calls each mx.eval came.

    marks: while MLX exports a gradient, the calls that the function under it makes; else None (see gradients.py).
    """

    on: bool = False
    exporting: bool = False
    marks: list[Call] | None = None
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
        if set(re.findall(r'label ="([^"]*)"', _dot(array))) <= {"Copy"}:
            return None  # it was there before, or is the copy of a weight that mx.grad leaves in a module
        found: dict[Value, None] = {}
        known = list(self.values.items())
        for first in range(0, len(known), MOST_NAMES):
            names = {f"v{number}": a for number, (a, _) in known[first : first + MOST_NAMES]}
            primitive, sources = origin(array, names)
            found.update(dict.fromkeys(self.values[int(name[1:])][1] for name in sources))
        inputs = _nearest(list(found))
        if not inputs:
            return None
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

    def call(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call MLX, with a note of it or with marks where they are wanted now."""
        if self.on:
            return self.run(name, function, args, kwargs)
        if self.marks is not None:
            return self.mark(name, function, args, kwargs)
        return function(*args, **kwargs)

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

    def mark(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call MLX on marked operands, and mark the results: the exported graph then shows where the call stands.

        An operand that the recorder knows comes from outside the gradient; the others' values are made by the call.
        """
        assert self.marks is not None
        number, marks = len(self.marks), self.marks
        call = Call(name, function, (), {}, [], self.place(), None)

        def ref(array: Any) -> Ref:
            known = self.values.get(id(array))
            value = Value(tuple(array.shape), dtype_name(array.dtype), call) if known is None else known[1]
            call.inputs.append(value)
            return Ref(len(call.inputs) - 1)

        call.args, call.kwargs = mapped(args, ref), mapped(kwargs, ref)
        if name == "fast.rope" and type(kwargs.get("offset")) is int:  # else the angles are constants, for all to share
            kwargs = {**kwargs, "offset": mx.array(kwargs["offset"])}
        places = count()
        marked: Callable[[Any], Any] = lambda a: _marked(a, marker(number, next(places), result=False))  # noqa: E731
        result = function(*mapped(args, marked), **mapped(kwargs, marked))
        marks.append(call)
        call.outputs = [Value(tuple(a.shape), dtype_name(a.dtype), call) for a in arrays_in(result)]
        places = count()
        return mapped(result, lambda a: _marked(a, marker(number, next(places), result=True)))

    def noted(self, argument: Any, inputs: list[Value]) -> Any:
        """The argument with a Ref for each array in it."""

        def ref(array: Any) -> Ref:
            inputs.append(self.value(array))
            return Ref(len(inputs) - 1)

        return mapped(argument, ref)

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
        key = mx.array([0, 0], mx.uint32) if self.key is None else self.key
        self.key, drawn = self.call("random.split", _split_key, (key,), {})
        return drawn

    @contextmanager
    def export(self, marks: list[Call] | None) -> Iterator[None]:
        """While MLX exports a call: nothing is recorded, and no key of the export is left behind."""
        before = self.on, self.exporting, self.marks, self.key
        self.on, self.exporting, self.marks, self.key = False, True, marks, None
        try:
            yield
        finally:
            self.on, self.exporting, self.marks, self.key = before


def mapped(tree: Any, array: Callable[[Any], Any], leaf: type = mx.array) -> Any:
    """Lists, tuples and dicts with something in place of each array. A module is left as it is."""
    if isinstance(tree, leaf):
        return array(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(item, array, leaf) for item in tree))
    if type(tree) in (list, tuple):
        return type(tree)(mapped(item, array, leaf) for item in tree)
    if type(tree) is dict:
        return {k: mapped(item, array, leaf) for k, item in tree.items()}
    return tree


MARK = 1 << 30
WIDEST_CALL = 1 << 11
"""The most operands, or results, of a marked call."""


def marker(call: int, place: int, result: bool) -> int:
    """The number that marks an operand or a result of a call."""
    return MARK + (call * WIDEST_CALL + place) * 2 + result


def unmarked(number: int) -> tuple[int, int, bool]:
    """The call, the place and the side that a number marks."""
    rest, result = divmod(number - MARK, 2)
    return rest // WIDEST_CALL, rest % WIDEST_CALL, bool(result)


def _marked(array: Any, number: int) -> Any:
    return ORIGINALS["depends"]([array], [mx.array(number)])[0]


OWN_KERNEL = "custom kernel "
"""What the call of a kernel of the user's own is named, with the kernel's name after it."""

RECORDER = Recorder()
ORIGINALS: dict[str, Any] = {}
"""MLX's own functions, by their names below `mx`."""


def unseen(*arrays: Any) -> Any:
    """Stands for a call that was not seen."""
    raise NotImplementedError


def origin(array: Any, names: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The primitive that makes an array, and which of the named arrays the graph behind it starts from."""
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


MOST_NAMES = 1000
"""Names that `mx.export_to_dot` takes at once."""


def _nearest(values: list[Value]) -> list[Value]:
    """Values without those that others of them are made of."""
    before: set[Value] = set()
    stack = [v.call for v in values if v.call is not None]
    seen: set[Call] = set()
    while stack:
        call = stack.pop()
        if call in seen:
            continue
        seen.add(call)
        before.update(call.inputs)
        stack.extend(v.call for v in call.inputs if v.call is not None)
    return [v for v in values if v not in before]


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
