"""Which findings are not worth a reader's time: where a package never runs them, or once a pass for a small saving."""

from __future__ import annotations

import os
from collections.abc import Callable

from fuselint import chips
from fuselint.config import Settings
from fuselint.finding import Traffic
from fuselint.graph.model import Graph
from fuselint.graph.worth import is_of_another_choice
from fuselint.rulebook import Match
from fuselint.source.frequency import NEVER, OFTEN, PREPARING, SELDOM, Frequency
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
"""Rules that save a few launches, or one pass over one activation: nothing, beside the layers of a model. No FUS102: a
mask is made once, too, but the attention of every layer reads it."""

LOOPS = frozenset(["FUS303"])
"""Rules that find a loop: what counts is how often that runs, not how many rounds it goes."""

HowOften = Callable[[Graph, tuple[int, int], str], Frequency]
"""How often these lines of a graph's function run, for the findings of a rule."""


def how_often(file: FileText, modules: Modules, settings: Settings) -> HowOften:
    """How often the code of a file runs, on the chip and in the phase that the settings name. What a user calls hot
    runs often."""
    path = os.path.abspath(file.path)
    on_metal = chips.chosen(settings.chip)[0].backend == "metal" and not PHASE[settings.phase or "prefill"].training

    def asked(graph: Graph, lines: tuple[int, int], code: str = "") -> Frequency:
        if graph.context.hot:
            return Frequency(OFTEN, "a setting")
        found = Definition(path, graph.context.qualname)
        return modules.frequency(found, *lines, beside_innermost=code in LOOPS, on_metal=on_metal)

    return asked


def is_idle(graph: Graph, match: Match, often: Frequency) -> bool:
    """Whether a match is not worth telling of: it never runs, or seldom and saves little then.

    Beside the steps of a solver nothing of what prepares them is, but waiting for the device in each round of a loop.
    """
    if often.how == NEVER or (is_of_another_choice(graph, match.root) and not graph.context.hot):
        return True
    if match.data.get("slower") and not graph.context.hot:
        return True  # MLX knows of the other way, and finds its own faster
    if often.how == PREPARING:
        return match.code not in LOOPS
    if not often.layered and any(n.op == "zeros_like" for n in match.region):
        return True  # a launch that writes zeros: of account only where each layer does it
    return often.how == SELDOM and match.code in SMALL and not _is_of_a_vocabulary(graph, match)


def is_trifle(code: str, traffic: Traffic | None, often: Frequency, settings: Settings) -> bool:
    """Whether so little is spared that only layers, or loops, would make something of it: two launches, no bytes."""
    asked = settings.hot or settings.model_config or settings.phase not in ("", "prefill")
    if traffic is None or asked or often.layered or code not in TRIFLING:
        return False
    return traffic.launches_fewer <= LAUNCHES and 0 < (traffic.saved_at or 0) < BYTES


TRIFLING = frozenset(["FUS106", "FUS301", "FUS302"])
LAUNCHES, BYTES = 2, 100_000
"""What is spared at most, at the sizes that a finding states, where it is nothing outside the layers of a model."""


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
