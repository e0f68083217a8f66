"""The traced callable and its inputs, made as the request says. The user's module is imported here."""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from fuselint.trace.inputs import ArrayInput, Input, parse_input, split_target
from fuselint.trace.model import Request
from fuselint.trace.recording import ORIGINALS


class BadRequest(Exception):
    """What was asked for isn't there, or doesn't fit: says so in one line."""


@dataclass(slots=True)
class Target:
    """A call that is ready to be made. state: objects whose arrays a call may read and change."""

    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    state: list[Any]

    def call(self) -> Any:
        return self.function(*self.args, **self.kwargs)


def prepare(request: Request) -> Target:
    """Import, build, and make the inputs. Raises BadRequest, and whatever the user's own code raises."""
    name, path = split_target(request.target)
    overlay(request.overlay)
    module = load(name)
    for model in (m for m in vars(module).values() if isinstance(m, nn.Module)):
        lazily(model, request.dtype)
    found, owner = find(module, name, path, request)
    target = Target(found, [], {}, [owner, vars(module)])
    subject = found if owner is None else owner
    if request.factory:
        target.args, target.kwargs = made_inputs(request.factory, module, subject)
    for text in request.inputs:
        given = parse_input(text, request.sizes)
        value = made(given, {**vars(module), "mx": mx, "nn": nn, "target": subject})
        if given.name:
            target.kwargs[given.name] = value
        else:
            target.args.append(value)
    try:
        inspect.signature(found).bind(*target.args, **target.kwargs)
    except ValueError:
        pass  # some callables have none
    except TypeError as e:
        raise BadRequest(f"the inputs don't fit {request.target}{shown_signature(found)}: {e}") from e
    target.state += [target.args, target.kwargs]
    return target


def overlay(texts: Mapping[str, str]) -> None:
    """Import these texts in place of files: what is on the disk, compiled or not, is passed by."""
    loader = importlib.machinery.SourceFileLoader
    get_data, path_stats = loader.get_data, loader.path_stats

    def data(self: Any, path: str) -> bytes:
        text = texts.get(os.path.realpath(path))
        return get_data(self, path) if text is None else text.encode()

    def stats(self: Any, path: str) -> Any:
        if os.path.realpath(path) in texts:
            raise OSError("no bytecode of a text that isn't on the disk")
        return path_stats(self, path)

    if texts:
        loader.get_data, loader.path_stats = data, stats  # type: ignore[method-assign]


def load(name: str) -> Any:
    """A module by its dotted name, or by its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    if not os.path.isfile(name):
        raise BadRequest(f"no file {name}")
    folder, stem = os.path.split(os.path.abspath(name)[: -len(".py")])
    parts = [stem]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        parts.insert(0, package)
    sys.path.insert(0, folder)
    return importlib.import_module(".".join(parts))


def find(
    module: Any, name: str, path: str, request: Request, weigh: Callable[[nn.Module, str], None] | None = None
) -> tuple[Callable[..., Any], Any]:
    """What the path leads to, classes on the way built; and the last object on it that holds state, if one does.

    weigh: what gives a module its weights, in a dtype; by default stand-ins that take no memory.
    """
    found, owner, seen = module, None, name
    for part in path.split("."):
        inner = found[int(part)] if part.isdecimal() and _holds(found, int(part)) else getattr(found, part, MISSING)
        if inner is MISSING:
            raise BadRequest(f"{seen} has no {part}{_near(part, found)}")
        found, seen = built(inner, module, request) if inspect.isclass(inner) else inner, f"{seen}.{part}"
        if isinstance(found, nn.Module):
            (weigh or lazily)(found, request.dtype)
        if not inspect.isroutine(found):
            owner = found
    if not callable(found):
        raise BadRequest(f"{seen} is of type {type(found).__name__}, which can't be called")
    return found, owner


def _holds(found: Any, index: int) -> bool:
    return isinstance(found, (list, tuple)) and index < len(found)


MISSING = object()


def _near(name: str, found: Any) -> str:
    from fuselint.config import nearest

    return nearest(name, [n for n in dir(found) if not n.startswith("__")])


def built(cls: type, module: Any, request: Request) -> Any:
    """An instance: `--init` holds the arguments, as text in the names of the class's module."""
    space = {**vars(sys.modules.get(cls.__module__, module)), **vars(module), "mx": mx, "nn": nn, "__class": cls}
    if not request.init:
        try:
            inspect.signature(cls).bind()
        except TypeError as e:
            raise BadRequest(f"{cls.__name__}{shown_signature(cls)} has to be built: give --init ({e})") from e
        except ValueError:
            pass
    return eval(f"__class({request.init})", space)


def remember_initials() -> dict[int, FrameType]:
    """The `__init__` that made each module, by the module's id: its names say what sizes the module has."""
    made: dict[int, FrameType] = {}
    original = nn.Module.__init__

    def init(self: nn.Module) -> None:
        made[id(self)] = sys._getframe(1)
        original(self)

    nn.Module.__init__ = init
    return made


def shown_signature(found: Any) -> str:
    try:
        return str(inspect.signature(found))
    except (TypeError, ValueError):
        return ""


def lazily(model: nn.Module, dtype: str) -> None:
    """Weights of the same shapes that take no memory: one number each, broadcast. Floating ones in `dtype`."""

    def stand_in(a: Any) -> Any:
        wanted = getattr(mx, dtype) if dtype and mx.issubdtype(a.dtype, mx.floating) else a.dtype
        return filled(a.shape, wanted)

    model.update(tree_map(stand_in, model.parameters()))


def filled(shape: Any, dtype: Any) -> Any:
    """An array of any size in a few bytes of memory."""
    array = mx.broadcast_to(mx.ones((), dtype), shape)
    ORIGINALS["eval"](array)
    return array


def made(given: Input, space: dict[str, Any]) -> Any:
    if isinstance(given.value, ArrayInput):
        return filled(given.value.shape, getattr(mx, given.value.dtype))
    try:
        return eval(given.value, space)
    except Exception as e:
        raise BadRequest(f"--input {given.text}: {type(e).__name__}: {e}") from e


def made_inputs(text: str, module: Any, target: Any) -> tuple[list[Any], dict[str, Any]]:
    """What a factory returns: a dict of named inputs, a tuple of them in order, a (tuple, dict), or one input."""
    name, colon, path = text.rpartition(":")
    home = load(name) if colon else module
    factory = getattr(home, path, None)
    if not callable(factory):
        raise BadRequest(f"--inputs {text}: {home.__name__} has no function {path}{_near(path, home)}")
    takes_target = bool(inspect.signature(factory).parameters)
    out = factory(target) if takes_target else factory()
    match out:
        case dict():
            return [], out
        case (tuple() | list() as args, dict() as kwargs):
            return list(args), kwargs
        case tuple():
            return list(out), {}
    return [out], {}
