"""Cuts of random compiled functions: what is there before and after a cut is what the fuser makes."""

from __future__ import annotations

from collections import Counter

import pytest

from fuselint.graph.cuts import cuts
from fuselint.graph.fuse import compiled
from fuselint.graph.model import Graph
from fuselint.graph.trace import trace
from tests.graph.functions import RandomFunction, graph_of, random_function, with_shapes
from tests.graph.test_fuse import outputs_of

DECORATORS = {True: "@partial(mx.compile, shapeless=True)\n", False: "@mx.compile\n"}


def compiled_graph(f: RandomFunction, shapeless: bool) -> Graph:
    source = f.source.replace("def f", f"{DECORATORS[shapeless]}def f")
    return with_shapes(graph_of(f"from functools import partial\n{source}"), f.shapes)


def grouped(source: str, shapes: tuple[tuple[int, ...], ...], shapeless: bool) -> Counter[str]:
    graph = with_shapes(graph_of(source), shapes)
    traced = trace(graph.nodes, graph.facts, shapeless=shapeless)
    roots = [a for n in outputs_of(graph) if (a := traced.array(n)) is not None]
    return Counter(g.name for g in compiled(roots))


@pytest.mark.parametrize("shapeless", [False, True], ids=["shapes", "shapeless"])
@pytest.mark.parametrize("seed", range(60))
def test_a_cut_lies_between_what_the_fuser_makes_and_fewer_kernels(seed: int, shapeless: bool) -> None:
    f = random_function(seed)
    graph = compiled_graph(f, shapeless)
    assert graph.context.compiled
    for cut in cuts(graph):
        assert Counter(g.name for g in cut.before) == grouped(f.source, f.shapes, shapeless), f.source
        if cut.kind == "shapeless":
            assert Counter(g.name for g in cut.after) == grouped(f.source, f.shapes, False), f.source
        if cut.kind in ("depth", "inputs", "shapeless"):
            now, then = (
                sum(g.fused or g.root.fusable for g in side if g not in cut.same) for side in (cut.before, cut.after)
            )
            assert then < now


def test_there_are_cuts_of_every_limit() -> None:
    missing = {"shapeless", "depth", "readers"}
    for seed in range(60):
        for shapeless in (False, True):
            missing -= {c.kind for c in cuts(compiled_graph(random_function(seed), shapeless))}
        if not missing:
            return
    pytest.fail(f"no cuts of {missing}")
