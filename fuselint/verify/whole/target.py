"""The callable of an entry with its weights and inputs. The user's module is imported here."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from fuselint.trace.inputs import split_target
from fuselint.trace.model import Request
from fuselint.trace.target import BadRequest, find, load, made_inputs, shown_signature
from fuselint.verify.whole.results import arrays


class Target:
    """A callable that can be called again and again on the same inputs. seed: called before inputs are made."""

    def __init__(self, request: Request, seed: Callable[[], None]) -> None:
        self._request, self._seed = request, seed
        name, path = split_target(request.target)
        self._module = load(name)
        self.notes: list[str] = []
        self._function, owner = find(self._module, name, path, request, weigh=_cast)
        self._subject = self._function if owner is None else owner
        self._model = self._subject if isinstance(self._subject, nn.Module) else None
        self._args: list[Any] = []
        self._kwargs: dict[str, Any] = {}

    def make_inputs(self) -> None:
        self._seed()
        if self._request.factory:
            self._args, self._kwargs = made_inputs(self._request.factory, self._module, self._subject)
        if self._request.dtype:
            wide = _caster(self._request.dtype)
            self._args, self._kwargs = tree_map(wide, self._args), tree_map(wide, self._kwargs)
        try:
            inspect.signature(self._function).bind(*self._args, **self._kwargs)
        except ValueError:
            pass  # some callables have none
        except TypeError as e:
            said = f"{self._request.target}{shown_signature(self._function)}"
            raise BadRequest(f"the inputs don't fit {said}: {e}; give --inputs MODULE:FUNCTION") from e
        mx.eval([a for _, a in arrays(self.given())])

    def given(self) -> dict[str, Any]:
        """The inputs. A call may change what they hold: a cache."""
        return {"argument": self._args, **({"keyword": self._kwargs} if self._kwargs else {})}

    def call(self) -> Any:
        return self._function(*self._args, **self._kwargs)

    # --- weights -----------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Any]:
        """Every parameter by its path; none where the callable is no module's."""
        return {} if self._model is None else dict(tree_flatten(self._model.parameters()))

    def set(self, path: str, value: mx.array) -> None:
        assert self._model is not None
        self._model.update(tree_unflatten([(path, value)]))

    def vary(self, seed: int) -> None:
        """Ones and zeros, which would hide a factor or a term that is lost, get values of their own."""
        for path, a in self.weights().items():
            if not mx.issubdtype(a.dtype, mx.floating) or not a.size or not mx.all(a == a.flatten()[0]).item():
                continue
            number = int.from_bytes(hashlib.sha256(f"{seed} {path}".encode()).digest()[:7], "big")
            drawn = a.astype(mx.float32) + 0.1 * mx.random.normal(a.shape, key=mx.random.key(number))
            self.set(path, drawn.astype(a.dtype))
        mx.eval(self.weights())

    def load(self, weights: Mapping[str, mx.array]) -> None:
        """The weights of the other version, where they have the same paths and shapes."""
        own = self.weights()
        alike = {p: a for p, a in weights.items() if p in own and own[p].shape == a.shape and own[p].dtype == a.dtype}
        for path, a in alike.items():
            self.set(path, a)
        mx.eval(self.weights())
        for what, paths in (
            ("only before", sorted(set(weights) - set(own))),
            ("only after", sorted(set(own) - set(weights))),
            ("of another shape or dtype after", sorted((set(own) & set(weights)) - set(alike))),
        ):
            if paths:
                more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
                self.notes.append(f"weights {what}: {', '.join(paths[:3])}{more}")


def _caster(dtype: str) -> Callable[[Any], Any]:
    wanted = getattr(mx, dtype)

    def cast(a: Any) -> Any:
        return a.astype(wanted) if isinstance(a, mx.array) and mx.issubdtype(a.dtype, mx.floating) else a

    return cast


def _cast(model: nn.Module, dtype: str) -> None:
    """Real weights, in evaluation mode, floating ones in `dtype`."""
    if dtype:
        model.update(tree_map(_caster(dtype), model.parameters()))
    model.eval()
    mx.eval(model.parameters())
