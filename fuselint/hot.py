"""Which findings are not worth a reader's time: where a package never runs them, or once a pass for a small saving."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fuselint import chips
from fuselint.config import Settings
from fuselint.finding import Traffic
from fuselint.graph.growth import is_one_of_many
from fuselint.graph.model import Frame, Graph
from fuselint.graph.worth import decomposes, is_of_another_choice, is_of_tables, is_only_read_out
from fuselint.rulebook import Match
from fuselint.source.frequency import NEVER, OFTEN, SELDOM, Frequency
from fuselint.source.modules import Definition, Modules
from fuselint.source.text import FileText
from fuselint.traffic.known import PHASE

SMALL = frozenset(
    [
        "FUS101",
        "FUS104",
        "FUS106",
        "FUS107",
        "FUS108",
        "FUS203",
        "FUS231",
        "FUS251",
        "FUS261",
        "FUS301",
        "FUS302",
        "FUS303",
        "FUS401",
        "FUS403",
    ]
)
"""Rules that save a few launches, or one pass over one activation: nothing, beside the layers of a model."""

CACHES = "FUS109"
"""A cache that is copied at every step is of account where all layers have such a one."""

MASKS = "FUS102"
"""A mask is made once, too, but the attention of every layer reads it, where it is of a whole prompt."""

LOOPS = frozenset(["FUS303"])
"""Rules that find a loop: what counts is how often that runs, not how many rounds it goes."""

LARGER = frozenset(["FUS101", "FUS401"])
"""Rules of which something is left in each layer of a text encoder beside the steps of a solver: attention."""


@dataclass(frozen=True, slots=True)
class HowOften:
    """How often the code of a file runs, on the chip and in the phase that the settings name. What a user calls hot
    runs often."""

    path: str
    modules: Modules
    on_metal: bool
    training: bool

    @classmethod
    def of(cls, file: FileText, modules: Modules, settings: Settings) -> HowOften:
        training = PHASE[settings.phase or "prefill"].training
        on_metal = chips.chosen(settings.chip)[0].backend == "metal" and not training
        return cls(os.path.abspath(file.path), modules, on_metal, training)

    def at(self, graph: Graph, lines: tuple[int, int], code: str = "") -> Frequency:
        """How often these lines of a graph's function run, for the findings of a rule."""
        if graph.context.hot:
            return Frequency(OFTEN, "a setting")
        found = Definition(self.path, graph.context.qualname)
        return self.modules.frequency(found, lines[0], beside_innermost=code in LOOPS, on_metal=self.on_metal)

    def places(self, graph: Graph, often: Frequency) -> set[str]:
        """Where what runs so often stands: see ONCE."""
        found = {ONCE} if often.how == SELDOM else set()
        if self.is_outside_layers(graph, often):
            return {*found, OUTSIDE}
        return found if often.again else {*found, LAYERS}

    def is_before_solver(self, graph: Graph, often: Frequency) -> bool:
        """Whether what runs so often does so before the many steps of another model, once for all of them."""
        if graph.context.hot or self.training or often.again or often.how == NEVER:
            return False
        return self.modules.prepares(Definition(self.path, graph.context.qualname), self.on_metal)

    def is_outside_layers(self, graph: Graph, often: Frequency) -> bool:
        """Whether what runs so often is neither part of a layer of which a model has many, nor in a loop."""
        if graph.context.hot or often.again or often.how == NEVER:
            return False
        return not self.modules.is_of_layers(Definition(self.path, graph.context.qualname), self.on_metal)


def is_idle(graph: Graph, match: Match, often: Frequency, asked: HowOften) -> bool:
    """Whether a match is not worth telling of: it never runs, or seldom and saves little then."""
    if often.how == NEVER or (is_of_another_choice(graph, match.root) and not graph.context.hot):
        return True
    if _is_in_cold(graph, match.root.frame) and not graph.context.hot:
        return True
    if (match.data.get("slower") or match.data.get("few")) and not graph.context.hot:
        return True  # MLX knows of the other way, and finds its own faster; or there is next to nothing to do
    if match.code == CACHES and not graph.context.hot and is_one_of_many(graph):
        return True
    if match.code in SMALL - LOOPS and not graph.context.hot:
        if is_only_read_out(graph, match.root) or decomposes(graph):
            return True
        read = dict.fromkeys(k for n in sorted(match.region, key=lambda n: n.id) for k in n.inputs)
        if is_of_tables(graph, [k for k in read if k not in match.region]):
            return True
    if often.how == SELDOM and match.code == MASKS and not often.of_tokens:
        return True
    if often.how == SELDOM and match.code in SMALL and not _is_of_a_vocabulary(graph, match):
        return True
    if match.code in SMALL - LOOPS - LARGER and asked.is_before_solver(graph, often):
        return True
    # A launch that writes zeros is of account only where each layer does it.
    return any(n.op == "zeros_like" for n in match.region) and asked.is_outside_layers(graph, often)


def _is_in_cold(graph: Graph, frame: Frame | None) -> bool:
    """Whether an expression lies in a cold function of the file, which another one calls."""
    while frame is not None and frame.depth:
        own = frame.source is not None and frame.source.file is graph.source.file
        if own and frame.qualname in graph.module.cold:
            return True
        frame = frame.parent
    return False


ONCE, OUTSIDE, LAYERS, ANYWHERE = "once", "outside", "layers", "anywhere"
"""Where a finding stands: what runs once a pass; what is no part of a layer of which a model has many, nor in a loop;
what is, and runs once for each call of it."""

FEW = frozenset(["FUS106", "FUS301", "FUS302"])
"""Rules that find work which may be on few numbers, and spare few launches of it each."""

NAMED = frozenset(["FUS203", "FUS231", "FUS261"])
"""Rules that put one operation of MLX's in place of two: of a vector, that spares the launch alone."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a finding spares at most to be nothing where it stands. launches: None for any number. said: what must be
    known of the sizes: SAID (by the package or the usual phase), KNOWN (all stated, or a prompt's rows are among them),
    ROWS (these, or heads are all there is), VECTOR (there is one row, however wide), or nothing.
    """

    where: str
    launches: int | None
    bytes: int
    said: str = ""
    codes: frozenset[str] | None = None


SAID, KNOWN, ROWS, VECTOR = "said", "known", "rows", "vector"

LIMITS = (
    Limit(ONCE, None, 4 << 20, KNOWN),  # nothing beside a pass
    Limit(OUTSIDE, 2, 100_000, codes=FEW),
    Limit(LAYERS, 2, 64 << 10, SAID, FEW),  # beside some thirty launches, in less time than one takes
    Limit(ANYWHERE, 2, 128 << 10, SAID, frozenset(["FUS101", "FUS102"])),  # keys or a mask of a few tokens
    Limit(ANYWHERE, 1, 64 << 10, VECTOR, NAMED),  # also in a loop, beside products with whole weights
    Limit(ANYWHERE, 0, 40 << 20, codes=frozenset(["FUS203"])),  # as many launches as before, and a few bytes less
    Limit(ANYWHERE, 1, 1 << 20, ROWS, FEW - {"FUS302"}),  # one number for each head and token, in one launch's time
)


def little_where(code: str, traffic: Traffic | None, settings: Settings) -> set[str]:
    """Where what a finding spares is too little to tell of."""
    if traffic is None or settings.hot or settings.model_config or settings.phase not in ("", "prefill"):
        return set()  # a user says what makes numbers more than a guess, or fewer rows of account
    saved, fewer = traffic.most
    return {
        limit.where
        for limit in LIMITS
        if (limit.codes is None or code in limit.codes)
        and (limit.launches is None or fewer <= limit.launches)
        and 0 < saved < limit.bytes
        and _is_said(limit.said, traffic)
    }


def _is_said(wanted: str, traffic: Traffic) -> bool:
    """Whether sizes are known well enough: see Limit."""
    rows = PHASE["prefill"].length in traffic.at.values()
    if wanted == ROWS:
        return rows or traffic.uses in (("heads",), ("kv_heads",))
    if wanted == KNOWN:
        return rows or not traffic.assumes_sizes
    if wanted and not {*traffic.sources.values()} <= {"typical", "assumed", "phase"}:
        return False  # a user may state those of one token
    if wanted == VECTOR:
        return bool(traffic.uses) and WIDTHS.issuperset(traffic.uses)
    uses = dict(zip(traffic.at, traffic.uses, strict=True))
    return not wanted or all(uses.get(name) in HEADS for name in traffic.typical)  # of heads there are never many


HEADS = frozenset({"heads", "kv_heads"})
WIDTHS = frozenset({"features", "inner"})


LARGEST = 200
"""Values that are looked at for logits, at most."""
CHOSEN = frozenset({"argmax", "argmin", "argsort", "argpartition"})
"""What makes one number of many logits: the entry itself."""


def _is_of_a_vocabulary(graph: Graph, match: Match) -> bool:
    """Whether a value is made of logits, with an entry for each word: as large as all the activations of a step."""
    waiting, seen = [match.root], {match.root}
    while waiting and len(seen) < LARGEST:
        node = waiting.pop()
        shape = graph.facts.shape(node) if graph.facts.kind(node) == "array" else None
        if node.op == "nn.Embedding.as_linear" or (shape is not None and shape.dims and "vocab" in str(shape.dims[-1])):
            return True
        new = [k for k in node.inputs if k not in seen and node.op not in CHOSEN]
        seen.update(new)
        waiting += new
    return False
