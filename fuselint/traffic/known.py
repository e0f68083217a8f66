"""Numbers for the sizes of one function: what the user states, what a configuration says, what the phase is, what the
package's own code says, and those of a typical model where nothing says anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fuselint.config import PHASES, Settings
from fuselint.finding import Source
from fuselint.graph.known import unmarked
from fuselint.modelconfig import ModelConfig

Number = tuple[int, Source]

SUREST_LAST: tuple[Source, ...] = ("typical", "assumed", "phase", "config", "recorded", "stated")


def least_sure(sources: Iterable[Source]) -> Source:
    """Where a number comes from that is made of others."""
    return min(sources, key=SUREST_LAST.index, default="stated")


@dataclass(frozen=True, slots=True)
class Phase:
    """What a pass of the model is given. keys: how many each query attends to, what is cached included."""

    batch: int
    length: int
    keys: int
    training: bool = False

    @property
    def tokens(self) -> int:
        return self.batch * self.length


PHASE: dict[str, Phase] = {
    "prefill": Phase(1, 2048, 2048),
    "decode": Phase(1, 1, 2048),
    "train": Phase(8, 2048, 2048, training=True),
}
assert set(PHASE) == set(PHASES)

TYPICAL: dict[str, int] = {
    "features": 4096, "heads": 32, "kv_heads": 8, "group": 4, "head": 128, "inner": 14336, "vocabulary": 128256,
    "experts": 8, "chosen": 2, "layers": 32, "pairs": 64, "span": 128, "rank": 8, "ratio": 4, "side": 32, "patch": 8,
    "state": 16, "other": 1,
}  # fmt: skip
"""Where nothing says a size: those of Llama 3 8B, and one of anything else. Good for ranking, and no more."""

LETTERS: dict[str, str] = {
    "B": "batch", "N": "batch", "H": "heads", "G": "kv_heads", "L": "length", "S": "keys", "T": "rows", "D": "features",
    "C": "features",
    "V": "vocabulary", "E": "experts", "F": "pairs",
}  # fmt: skip
"""What sizes are that rules, and most code, call by one letter."""

LETTER_OF: dict[str, str] = {
    "batch": "B", "length": "L", "keys": "S", "heads": "H", "kv_heads": "G", "features": "D",
}  # fmt: skip
"""What to call an axis by what it is for, where the code has no name for it."""

NAMES: tuple[tuple[str, str], ...] = (
    (r"window.*\[\d\]$", "patch"),  # one side of a window of an image
    (r"batch|^bsz$|^bs$|^bsize$", "batch"),
    (r"ratio$|_mult(iplier)?$|factor$|expansion$", "ratio"),
    (r"^n_?dims?$|_ndim$", "other"),  # how many axes
    (r"(window|chunk|block|context|segment)_?size|^chunk(_len(gth)?)?$", "span"),
    (r"kernel|conv.*(size|width|dim)|(patch|group|buffer|cache|image|grid)_?size|stride", "other"),
    (r"shared_?heads?$", "group"),
    (r"kv.*heads?$|key_value_heads|heads?_kv|^n?_?kv$|^n(um)?_?[kv]_?heads?$", "kv_heads"),
    (r"^d_state$|state_?(size|dims?)$", "state"),
    (
        r"rot(ary)?_?(n?dims?|dimensions?)$|head_?([kvq]k?_)?(dim|width|size)|dim_head|\bd_head|^head$|^hd$|qk_.*dim|v_head|per_head|kv_?channels|^d_kv$",
        "head",
    ),
    (r"heads?$|n_?head|^n_?h$", "heads"),
    (r"rep(eat)?s?$|group|n_rep|gqa", "group"),
    (r"vocab", "vocabulary"),
    (r"per_tok|top_?k", "chosen"),
    (r"experts?$", "experts"),
    (r"intermediate|inner|ffn|mlp|hidden_dim|^hidden$|ff_?dim|d_ff", "inner"),
    (r"^(lora_)?(r|rank)$", "rank"),
    (r"layers?$|depth", "layers"),
    (r"len(gth)?$|^seq|seq$|^t$|^time$|tokens?$|steps?$|frames?$|positions?$", "length"),
    (r"dims?$|width|features?|channels?|hidden_size|d_model|embed|n_state|_size$", "features"),
)
"""What names say of a size, the first that fits; the letter case doesn't matter."""

BY_RANK: dict[int, tuple[str, ...]] = {
    1: ("features",),
    2: ("rows", "features"),
    3: ("batch", "length", "features"),
    4: ("batch", "heads", "length", "head"),
    5: ("batch", "kv_heads", "group", "length", "head"),
}
"""The axes of an activation by its rank: rows of features, batch x length x features, and attention's heads."""


IMAGE = ("batch", "side", "side", "features")
"""Those of an image."""

PAST = re.compile(r"(.*[._])?((k|v|keys?|values?)(_\w+)?|.*cache.*|past.*|.*context.*|memory|encoder.*)'*\.shape\[")
"""Arrays that queries attend to, by their names."""


WEIGHT = re.compile(r"(^|[._])(weight|kernel)'*\.shape\[")
"""Arrays that are multiplied with activations, or convolve them: as long as what comes out and what goes in."""


def role(name: str, at: str = "other") -> str:
    """What a name's size is for. at: what its place in a shape says."""
    name = unmarked(name)
    if ".shape[" in name:
        return _of_axis(name, at)
    last = name.rstrip("'").rsplit(".", 1)[-1]
    if last in LETTERS:
        # One letter may stand for several things: the place decides on features.
        return at if last in ("C", "D", "N", "E") and at != "other" else LETTERS[last]
    found = next((r for pattern, r in NAMES if re.search(pattern, last.lower())), None)
    return found or at


HEADED = frozenset({"heads", "kv_heads", "group", "head"})


def _of_axis(name: str, at: str) -> str:
    """Of `x.shape[1]`, of which the code says no more."""
    axis = name.rstrip("]'").rsplit("[", 1)[-1]
    past = axis in ("2", "-2") and PAST.match(name) is not None
    if past and at == "head":
        return "keys"  # the scores of what is attended to
    if WEIGHT.search(name) is not None:
        return "features" if axis in ("0", "-1") or at == "features" else "other"
    if at == "head" or (at in (*HEADED, "side") and axis != "-1"):
        return at
    if past:
        return "keys"
    if at == "batch" and axis in ("1", "-2"):
        return at  # the axes before it were taken away, or new ones stand after it
    return {"0": "batch", "1": "length", "-1": "features", "-2": "length", "-3": "batch"}.get(axis, at)


def _nothing(name: str) -> int | None:
    return None


@dataclass(frozen=True)
class Known:
    """stated, recorded, configured: numbers by name; config: for what none says.

    usual: numbers that the package's own defaults give, which stand for what nothing else says.
    phase_stated: whether the user chose it; resized: its sizes that the user stated, by role.
    ran: sizes of a recorded run, by role; dtypes: those of its arguments, by the symbols that stand for them.
    """

    stated: Callable[[str], int | None] = _nothing
    recorded: Callable[[str], int | None] = _nothing
    configured: Callable[[str], int | None] = _nothing
    config: ModelConfig | None = None
    phase: Phase = PHASE["prefill"]
    phase_stated: bool = False
    resized: frozenset[str] = frozenset()
    ran: Mapping[str, int] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    usual: Mapping[str, int] = field(default_factory=dict)
    cache: dict[str, Number | None] = field(default_factory=dict)

    def number(self, name: str) -> Number | None:
        """What is said of the name itself."""
        if name not in self.cache:
            self.cache[name] = self._number(name)
        return self.cache[name]

    def _number(self, name: str) -> Number | None:
        stated = self.stated(name)
        if stated is not None:
            return stated, "stated"
        recorded = self.recorded(name)
        if recorded is not None:
            return recorded, "recorded"
        configured = self.configured(name)
        return None if configured is None else (configured, "config")

    def likely(self, name: str) -> Number | None:
        """What is said of the name, or what the package's defaults make of it."""
        if (said := self.number(name)) is not None or name not in self.usual:
            return said
        return self.usual[name], "assumed"

    def of_role(self, what: str) -> Number:
        """A size by what it is for."""
        p = self.phase
        phases: Mapping[str, int] = {"batch": p.batch, "length": p.length, "keys": p.keys, "rows": p.tokens}
        if what in self.ran and what not in self.resized:
            return self.ran[what], "recorded"
        if what in phases:
            return phases[what], self._phase_source(what)
        if what == "head rows":  # of each token
            heads, of_heads = self.of_role("heads")
            tokens, of_tokens = self.of_role("rows")
            return heads * tokens, least_sure((of_heads, of_tokens))
        said = None if self.config is None else self.config.role(what)
        return (TYPICAL.get(what, 1), "typical") if said is None else (said, "config")

    def _phase_source(self, what: str) -> Source:
        if what in self.resized:
            return "stated"
        return "phase" if self.phase_stated else "assumed"


def known(settings: Settings, function: str, configured: Callable[[str], int | None] = _nothing) -> Known:
    """What is known in the function of that qualified name."""
    phase, resized = _resized(settings, function)
    return Known(
        stated=lambda name: settings.size(function, name),
        configured=configured,
        config=settings.model_config,
        phase=phase,
        phase_stated=bool(settings.phase),
        resized=resized,
    )


def _resized(settings: Settings, function: str) -> tuple[Phase, frozenset[str]]:
    """The phase with the user's B, L and S. Rows follow from both B and L, and keys from L unless many are cached."""
    usual = PHASE[settings.phase or "prefill"]
    stated = {"batch": "B", "length": "L", "keys": "S"}
    said = {field: n for field, letter in stated.items() if (n := settings.size(function, letter)) is not None}
    if "length" in said and usual.keys == usual.length:
        said.setdefault("keys", said["length"])
    follow = {"rows"} if said.keys() & {"batch", "length"} else set()
    phase = Phase(
        batch=said.get("batch", usual.batch),
        length=said.get("length", usual.length),
        keys=said.get("keys", usual.keys),
        training=usual.training,
    )
    return phase, frozenset(said.keys() | follow)
