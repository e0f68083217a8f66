"""Which findings are not worth a reader's time: where a package never runs them, or once a pass for a small saving."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fuselint import chips
from fuselint.config import Settings
from fuselint.finding import Traffic
from fuselint.graph.model import Graph
from fuselint.graph.worth import is_of_another_choice, is_only_read_out
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

MASKS = "FUS102"
"""A mask is made once, too, but the attention of every layer reads it, where it is of a whole prompt."""

LOOPS = frozenset(["FUS303"])
"""Rules that find a loop: what counts is how often that runs, not how many rounds it goes."""


@dataclass(frozen=True, slots=True)
class HowOften:
    """How often the code of a file runs, on the chip and in the phase that the settings name. What a user calls hot
    runs often."""

    path: str
    modules: Modules
    on_metal: bool

    @classmethod
    def of(cls, file: FileText, modules: Modules, settings: Settings) -> HowOften:
        training = PHASE[settings.phase or "prefill"].training
        on_metal = chips.chosen(settings.chip)[0].backend == "metal" and not training
        return cls(os.path.abspath(file.path), modules, on_metal)

    def at(self, graph: Graph, lines: tuple[int, int], code: str = "") -> Frequency:
        """How often these lines of a graph's function run, for the findings of a rule."""
        if graph.context.hot:
            return Frequency(OFTEN, "a setting")
        found = Definition(self.path, graph.context.qualname)
        return self.modules.frequency(found, lines[0], beside_innermost=code in LOOPS, on_metal=self.on_metal)

    def is_outside_layers(self, graph: Graph, often: Frequency) -> bool:
        """Whether what runs so often is neither part of a layer of which a model has many, nor in a loop."""
        if graph.context.hot or often.again or often.how == NEVER:
            return False
        return not self.modules.is_of_layers(Definition(self.path, graph.context.qualname), self.on_metal)


def is_idle(graph: Graph, match: Match, often: Frequency, asked: HowOften) -> bool:
    """Whether a match is not worth telling of: it never runs, or seldom and saves little then."""
    if often.how == NEVER or (is_of_another_choice(graph, match.root) and not graph.context.hot):
        return True
    if match.data.get("slower") and not graph.context.hot:
        return True  # MLX knows of the other way, and finds its own faster
    if match.code in SMALL - LOOPS and not graph.context.hot and is_only_read_out(graph, match.root):
        return True
    if often.how == SELDOM and match.code == MASKS and not often.of_tokens:
        return True
    if often.how == SELDOM and match.code in SMALL and not _is_of_a_vocabulary(graph, match):
        return True
    # A launch that writes zeros is of account only where each layer does it.
    return any(n.op == "zeros_like" for n in match.region) and asked.is_outside_layers(graph, often)


def is_trifle(code: str, traffic: Traffic | None, settings: Settings) -> bool:
    """Whether so little is spared that only layers, or loops, would make something of it: two launches, no bytes."""
    if traffic is None or _is_stated(settings) or code not in TRIFLING:
        return False
    return traffic.launches_fewer <= LAUNCHES and 0 < (traffic.saved_at or 0) < BYTES


def is_little_once(traffic: Traffic | None, settings: Settings) -> bool:
    """Whether so little is spared that it is nothing once a pass, whatever rule finds it: with the rows of a prompt, or
    at sizes that the code says."""
    if traffic is None or _is_stated(settings):
        return False
    is_known = not traffic.assumes_sizes or PHASE["prefill"].length in traffic.at.values()
    return is_known and 0 < (traffic.saved_at or 0) < ONCE


def _is_stated(settings: Settings) -> bool:
    """Whether a user says something of what runs that makes numbers more than a guess, or fewer rows of account."""
    return bool(settings.hot or settings.model_config or settings.phase not in ("", "prefill"))


TRIFLING = frozenset(["FUS106", "FUS301", "FUS302"])
LAUNCHES, BYTES = 2, 100_000
"""What is spared at most, at the sizes that a finding states, where it is nothing outside the layers of a model."""
ONCE = 4 << 20
"""Bytes that are nothing beside a pass."""


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
