"""Work of which nothing is left but the code of the nearest entry, and work beside it that something else reads."""

from __future__ import annotations

import pytest

from fuselint.analysis import analyse
from fuselint.config import Settings
from fuselint.source.text import FileText

HEAD = "import mlx.core as mx\n\n\n"
DISTANCE = """def codes(x: mx.array, table: mx.array):
    far = mx.sum(table**2, axis=-1) - 2 * (x @ table.T)
    return {returned}
"""

RETURNED = {
    "nearest": ("mx.argmin(far, axis=-1)", 0),
    "nearest of negatives": ("mx.argmax(-far, axis=-1)", 0),
    "nearest after a view": ("mx.argmin(far.reshape(-1, far.shape[-1]), axis=-1)", 0),
    "largest: a token of logits": ("mx.argmax(far, axis=-1)", 1),
    "with the distance": ("(mx.argmin(far, axis=-1), far)", 1),
    "with the least distance": ("(mx.argmin(far, axis=-1), mx.min(far, axis=-1))", 1),
}


def found(source: str, **settings: tuple[str, ...]) -> list[str]:
    result, _ = analyse(FileText("m.py", HEAD + source), Settings(select=("FUS231",), **settings), None)  # type: ignore[arg-type]
    assert not result.errors
    return [f.code for f in result.findings]


@pytest.mark.parametrize(
    ("squares", "count"),
    [("mx.sum(table * table, axis=-1)", 0), ("(table * table).sum(axis=-1)", 0), ("mx.sum(table * x[0], axis=-1)", 1)],
)
def test_the_largest_product_less_the_squares_is_the_nearest(squares: str, count: int) -> None:
    source = DISTANCE.replace("mx.sum(table**2, axis=-1) - 2 * (x @ table.T)", f"2 * (x @ table.T) - {squares}")
    assert found(source.format(returned="mx.argmax(far, axis=-1)")) == ["FUS231"] * count


@pytest.mark.parametrize(("returned", "count"), RETURNED.values(), ids=RETURNED)
def test_what_only_finds_the_nearest_is_silent(returned: str, count: int) -> None:
    assert found(DISTANCE.format(returned=returned)) == ["FUS231"] * count


def test_not_where_the_user_calls_it_hot() -> None:
    assert found(DISTANCE.format(returned="mx.argmin(far, axis=-1)"), hot=("*",)) == ["FUS231"]


def test_the_squares_of_a_table_of_its_own() -> None:
    source = OWN.replace("mx.sum(self.codebook.weight**2, axis=-1) - 2 * (x @ self.codebook.weight.T)", OWN_SQUARES)
    assert not found(source.format(returned="mx.argmax(far, axis=-1)"))


OWN_SQUARES = """2 * (x @ self.codebook.weight.T) - mx.sum(self.codebook.weight * self.codebook.weight, axis=-1)"""
OWN = """import mlx.nn as nn


class Quantizer(nn.Module):
    def __init__(self, codes, dims):
        super().__init__()
        self.codebook = nn.Embedding(codes, dims)

    def __call__(self, x):
        far = mx.sum(self.codebook.weight**2, axis=-1) - 2 * (x @ self.codebook.weight.T)
        return {returned}
"""


@pytest.mark.parametrize(
    ("returned", "count"),
    [
        ("mx.argmax(-far, axis=-1), far", 0),
        ("mx.argmax(far, axis=-1), far", 1),
        ("mx.argmax(-far, axis=-1), far * x", 1),
    ],
)
def test_distances_to_a_codebook_of_its_own_may_be_given_back(returned: str, count: int) -> None:
    assert found(OWN.format(returned=returned)) == ["FUS231"] * count
