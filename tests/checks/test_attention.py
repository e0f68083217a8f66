"""FUS211, FUS102, FUS101: masks and sinks as the fused kernel takes them, and what the fixed code computes."""

from __future__ import annotations

from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.engine import fix_text
from fuselint.finding import Finding
from fuselint.source.text import FileText

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

SELECTED = ("FUS211", "FUS102", "FUS101")


def fixed(text: str) -> tuple[str, list[Finding]]:
    """The text with every fix made, and the findings that led there."""
    done = fix_text(FileText("m.py", text), Settings(select=SELECTED, unsafe_fixes=True))
    assert not done.remaining.errors, done.remaining.errors
    return done.after, [*done.applied, *done.remaining.findings]


def attend(body: str, arguments: str = "q, k, v, mask=None") -> str:
    lines = "".join(f"    {line}\n" for line in body.strip().split("\n"))
    return f"{HEAD}def f({arguments}):\n    B, H, L, D = q.shape\n{lines}"


def run(text: str, *args: Any) -> Any:
    names: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), names)
    return names["f"](*args)


def same(before: str, after: str, *args: Any) -> None:
    mx = pytest.importorskip("mlx.core")
    a, b = run(before, *args), run(after, *args)
    assert a.dtype == b.dtype and mx.allclose(a, b, rtol=1e-4, atol=1e-5).item(), mx.abs(a - b).max()


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    mx = pytest.importorskip("mlx.core")
    return [mx.random.normal(s, key=mx.random.key(i)) for i, s in enumerate(shapes)]


CAST = """
scores = q @ k.swapaxes(-1, -2)
if mask is not None:
    scores = scores + mask.astype({})
return mx.softmax(scores, axis=-1) @ v
"""


@pytest.mark.parametrize(("dtype", "needs"), [("q.dtype", 0), ("scores.dtype", 1)])
def test_a_mask_that_may_be_none_is_cast_where_there_is_one(dtype: str, needs: int) -> None:
    before = attend(CAST.format(dtype))
    after, findings = fixed(before)
    assert "mask=None if mask is None else mask.astype(q.dtype)" in after and "softmax" not in after
    assert [len(f.fix.needs) for f in findings if f.fix] == [needs]
    q, k, v, mask = arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (5, 7))
    same(before, after, q, k, v, mask)
    same(before, after, q, k, v, mask > 0)  # cast, it is added
    same(before, after, q, k, v)


def test_a_mask_cast_to_the_scores_dtype_is_cast_to_the_queries() -> None:
    before = attend("s = q @ k.swapaxes(-1, -2)\nreturn mx.softmax(s + mask.astype(s.dtype), axis=-1) @ v")
    after, _ = fixed(before)
    assert "mask=mask.astype(q.dtype)" in after and "s = " not in after
    same(before, after, *arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (5, 7)))


CAUSAL = "mask = mx.arange(L)[:, None] >= mx.arange(L)[None]\n"


def test_a_boolean_that_is_added_to_scores_is_no_mask() -> None:
    for body in (
        CAUSAL + "return mx.softmax(q @ k.swapaxes(-1, -2) + mask, axis=-1) @ v",
        "return mx.softmax(q @ k.swapaxes(-1, -2) + (mask > 0), axis=-1) @ v",
    ):
        assert fixed(attend(body)) == (attend(body), [])


def test_a_boolean_that_is_added_as_numbers_stays_numbers() -> None:
    body = CAUSAL + "return mx.softmax(q @ k.swapaxes(-1, -2) + mask.astype(q.dtype), axis=-1) @ v"
    after, findings = fixed(attend(body))
    assert [f.code for f in findings] == ["FUS211"] and "mask=mask.astype(q.dtype)" in after
    same(attend(body), after, *arrays((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)))


def test_a_boolean_that_selects_scores_is_a_mask() -> None:
    body = CAUSAL + "s = q @ k.swapaxes(-1, -2)\nreturn mx.softmax(mx.where(mask, s, -mx.inf), axis=-1) @ v"
    after, _ = fixed(attend(body))
    assert '"causal"' in after
    same(attend(body), after, *arrays((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)))


COLUMN = "c = mx.broadcast_to(s.reshape(1, -1, 1, 1), (B, H, L, 1))"


@pytest.mark.parametrize(
    "body",
    [
        f"{COLUMN}\nw = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2) + mask, c], axis=-1), axis=-1)[..., :-1]",
        f"{COLUMN}\nw = mx.softmax(mx.concatenate([c, q @ k.swapaxes(-1, -2) + mask], axis=3), axis=-1)[:, :, :, 1:]",
        "c = mx.tile(s[None, :, None, None], (B, 1, L, 1)).astype(q.dtype)\n"
        "w = mx.softmax(mx.concatenate([c, 0.3 * (q @ k.swapaxes(-1, -2)) + mask], axis=-1), axis=-1)[..., 1:]",
    ],
)
def test_sinks_as_a_column_of_the_scores(body: str) -> None:
    before = attend(f"{body}\nreturn w @ v", "q, k, v, mask, s: mx.array")
    after, findings = fixed(before)
    assert "mask=mask, sinks=s.astype(q.dtype)" in " ".join(after.split()) and "softmax" not in after
    assert all("MLX 0.29.1 or newer" in f.fix.needs for f in findings if f.fix)
    same(before, after, *arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (5, 7), (3,)))


@pytest.mark.parametrize(
    "rest",
    [
        "w = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c], axis=-1), axis=-1)[..., 1:]",
        "w = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c], axis=-1), axis=-1)[..., :-2]",
        "w = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c], axis=-1)[..., :-1], axis=-1)[..., :-1]",
        "w = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c, c], axis=-1), axis=-1)[..., :-1]",
        "c = mx.broadcast_to(s.reshape(1, -1, 1, 1), (B, H, L, 2))\n"
        "w = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c], axis=-1), axis=-1)[..., :-1]",
        "c = mx.tile(s.reshape(1, -1, 1, 1), (B, 2, L, 1))\n"
        "w = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c], axis=-1), axis=-1)[..., :-1]",
        "w = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c * q[..., :1]], axis=-1), axis=-1)[..., :-1]",
        "c = mx.broadcast_to((B, H, L, 1), s.reshape(1, -1, 1, 1))\n"  # no shape
        "w = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c], axis=-1), axis=-1)[..., :-1]",
        "c = mx.tile(s.reshape(1, -1, 1, 1), (1,))\n"
        "w = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c], axis=-1), axis=-1)[..., :-1]",
        "w = mx.softmax(mx.concatenate([q.astype(mx.int32) @ k.swapaxes(-1, -2), c], axis=-1), axis=-1)[..., :-1]",
        "v = s\nw = mx.softmax(mx.concatenate([q @ k.swapaxes(-1, -2), c], axis=-1), axis=-1)[..., :-1]",
        "w = mx.softmax(q @ k.swapaxes(-1, -5), axis=-1)",  # of rank 5
    ],
)
def test_what_is_no_column_of_sinks_stays(rest: str) -> None:
    before = attend(f"{COLUMN}\n{rest}\nreturn w @ v", "q, k, v, s: mx.array")
    assert fixed(before) == (before, [])


def test_a_key_and_a_value_of_zeros_score_what_the_mask_says() -> None:
    mx = pytest.importorskip("mlx.core")
    q, k, v, mask, sinks = arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (5, 7), (3,))
    zeros = mx.zeros((2, 3, 1, 8))
    column = mx.broadcast_to(sinks[None, :, None, None], (2, 3, 5, 1))
    whole = mx.concatenate([column, mx.broadcast_to(mask, (2, 3, 5, 7))], axis=-1)
    longer = [mx.concatenate([zeros, a], axis=2) for a in (k, v)]
    attention = mx.fast.scaled_dot_product_attention
    assert mx.allclose(
        attention(q, *longer, scale=0.3, mask=whole), attention(q, k, v, scale=0.3, mask=mask, sinks=sinks), atol=1e-5
    )


SDPA = "return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)"
ROWS = "rows, columns = mx.arange(k.shape[2] - L, k.shape[2])[:, None], mx.arange(k.shape[2])[None]\n"


@pytest.mark.parametrize(
    ("mask", "becomes"),
    [
        ("mx.where(columns <= rows, 0.0, -mx.inf)", "mask = columns <= rows"),
        ("mx.where(columns <= rows, mx.array(0.0), mx.array(mx.finfo(mx.float32).min))", "mask = columns <= rows"),
        ("((columns > rows) | (rows > columns + 2)) * -1e9", "mx.logical_not((columns > rows) | (rows > columns + 2))"),
        ("-1e9 * (mx.abs(rows - columns) > 1).astype(mx.float32)", "mx.logical_not(mx.abs(rows - columns) > 1)"),
        ("mx.where(columns > rows, -1e30, 0)", "mx.logical_not(columns > rows)"),
    ],
)
def test_an_additive_mask_becomes_its_condition(mask: str, becomes: str) -> None:
    for text in (mask, f"({mask}).astype(q.dtype)"):
        before = attend(f"{ROWS}mask = {text}\n{SDPA}", "q, k, v")
        after, findings = fixed(before)
        assert [f.code for f in findings] == ["FUS102"] and becomes in after
        same(before, after, *arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)))


def test_a_mask_that_hides_the_earlier_positions_is_not_causal() -> None:
    at = "at = mx.arange(L)\nmask = mx.where(at[:, None] <= at[None], 0.0, -1e9)\n"
    after, _ = fixed(attend(at + SDPA, "q, k, v"))
    assert "mask = at[:, None] <= at[None]" in after
    same(attend(at + SDPA, "q, k, v"), after, *arrays((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)))


@pytest.mark.parametrize(
    "rest",
    [
        "mask = (columns > rows) * -1e3\n" + SDPA,
        "mask = (columns > rows) * -mx.inf\n" + SDPA,  # 0 * -inf is NaN
        "mask = (columns > rows).astype(mx.float32) * -1e9 + mask\n" + SDPA,
        "mask = (columns > rows) * -1e9\nmask = mx.maximum(mask, -5)\n" + SDPA,
        "mask = mx.where(mask > rows, 0, -1e9)\nreturn mask * q",
    ],
)
def test_what_is_more_than_a_condition_stays(rest: str) -> None:
    assert fixed(attend(ROWS + rest)) == (attend(ROWS + rest), [])


def test_a_mask_that_is_cast_on_its_way_is_advice() -> None:
    body = ROWS + "mask = mx.where(columns > rows, -1e9, 0.0)\nmask = mask[None, None].astype(q.dtype)\n" + SDPA
    after, [finding] = fixed(attend(body))
    assert after == attend(body) and finding.fix and finding.fix.applicability == "none"


def test_the_readers_of_a_helpers_mask_are_looked_at_where_they_are_in_this_file() -> None:
    helper = """def window(n: int, width: int):
    rows, columns = mx.arange(n)[:, None], mx.arange(n)[None]
    return (mx.abs(rows - columns) > width) * -1e9


"""
    one = helper + "def f(x, n: int):\n    return {}\n"
    for reader, codes in (("window(n, 4).astype(x.dtype)", ["FUS102"]), ("mx.exp(window(n, 4)) * x", [])):
        _, findings = fixed(HEAD + one.format(reader))
        assert [f.code for f in findings] == codes, reader


def test_a_helper_whose_calls_are_all_seen_gives_the_condition() -> None:
    text = """import mlx.core as mx


class Attention:
    def _mask(self, n: int, dtype):
        if n == 1:
            return None
        delta = mx.arange(n)[:, None] - mx.arange(n)[None]
        allowed = delta >= 0
        if n > 3:
            allowed = allowed & (delta < 2)
        return mx.where(allowed, 0.0, mx.finfo(dtype).min).astype(dtype)

    def attend(self, q):
        return mx.fast.scaled_dot_product_attention(q, q, q, scale=0.3, mask=self._mask(q.shape[2], q.dtype))


def f(q):
    return Attention().attend(q)
"""
    after, [finding] = fixed(text)
    assert "return allowed\n" in after and finding.fix and finding.fix.applicability == "unsafe"
    for n in (1, 3, 6):
        same(text, after, *arrays((1, 2, n, 8)))
    assert fixed(text.replace("Attention().attend(q)", "Attention()._mask(4, q.dtype) + q"))[1] == []


def test_a_boolean_mask_is_followed_into_the_function_that_selects_by_it() -> None:
    text = """import mlx.core as mx


def attend(q, k, v, mask):
    scores = q @ k.swapaxes(-1, -2)
    return mx.softmax({}, axis=-1) @ v


def f(x):
    B, H, L, D = x.shape
    mask = mx.arange(L)[:, None] >= mx.arange(L)[None]
    for _ in range(2):
        x = attend(x, x, x, mask)
    return x
"""
    selected = text.format("mx.where(mask, scores, -mx.inf)")
    assert "FUS102" in {f.code for f in fixed(selected)[1]}
    same(selected, fixed(selected)[0], *arrays((1, 2, 6, 8)))
    added = text.format("scores + mask")
    assert {f.code for f in fixed(added)[1]} <= {"FUS211"}


def test_queries_are_no_mask_of_themselves() -> None:
    source = """import mlx.core as mx


def f(q, k, v):
    scores = q @ k.transpose(0, 1, 3, 2) * 0.3
    scores = mx.where(q, scores, -1e9)
    return mx.softmax(scores, axis=-1) @ v
"""
    assert "scaled_dot_product_attention" not in fix_text(FileText("m.py", source), Settings(unsafe_fixes=True)).after


def test_queries_that_are_the_mask_too_are_broadcast() -> None:
    before = attend("w = mx.softmax(0.3 * (mask @ k.swapaxes(-1, -2)) + mask, axis=-1)\nreturn w @ v", "k, v, mask")
    assert fixed(before) == (before, [])


def test_a_column_of_sinks_in_a_shape_that_is_a_name_is_left_alone() -> None:
    body = """
        c = {column}
        p = mx.concatenate([q @ k.swapaxes(-1, -2), c], axis=-1)
        return mx.softmax(p, axis=-1, precise=True)[..., :-1] @ v
        """
    body = "\n".join(line.strip() for line in body.strip().split("\n"))
    for made in ("mx.broadcast_to({s}, shape)", "mx.tile({s}, shape)", "mx.tile({s}, (L, 1))"):
        column = made.format(s="s.reshape(1, -1, 1, 1)")
        text = attend(body.format(column=column), "q, k, v, s, shape: mx.array")
        assert fixed(text)[0] == text


EINSUMS = {
    "heads last but one": ("blhd,bmhd->bhlm", "bhlm,bmhd->blhd", (2, 5, 4, 8), (2, 6, 4, 8)),
    "heads first": ("bhld,bhmd->bhlm", "bhlm,bhmd->bhld", (2, 4, 5, 8), (2, 4, 6, 8)),
    "result with heads first": ("blhd,bmhd->bhlm", "bhlm,bmhd->bhld", (2, 5, 4, 8), (2, 6, 4, 8)),
    "three axes": ("hld,hmd->hlm", "hlm,hmd->hld", (4, 5, 8), (4, 6, 8)),
    "operands exchanged": ("bmhd,blhd->bhlm", "bhlm,bmhd->blhd", (2, 5, 4, 8), (2, 6, 4, 8)),
}


@pytest.mark.parametrize(("first", "last", "queries", "keys"), EINSUMS.values(), ids=EINSUMS)
def test_attention_by_einsum(first: str, last: str, queries: tuple[int, ...], keys: tuple[int, ...]) -> None:
    operands = "k, q" if first.startswith("bm") else "q, k"
    before = (
        f"{HEAD}def f(q, k, v):\n"
        f'    weights = mx.softmax(mx.einsum("{first}", {operands}) * 0.3, axis=-1)\n'
        f'    return mx.einsum("{last}", weights, v)\n'
    )
    after, _ = fixed(before)
    assert "scaled_dot_product_attention" in after and "einsum" not in after
    same(before, after, *arrays(queries, keys, keys))


@pytest.mark.parametrize("last", ["bhlm,bmhd->blhm", "bhml,bmhd->blhd", "bhlm,bmhc->blhc"])
def test_an_einsum_that_is_no_attention(last: str) -> None:
    text = (
        f"{HEAD}def f(q, k, v):\n"
        f'    weights = mx.softmax(mx.einsum("blhd,bmhd->bhlm", q, k), axis=-1)\n'
        f'    return mx.einsum("{last}", weights, v)\n'
    )
    after, findings = fixed(text)
    assert ("scaled_dot_product_attention" in after) == ("c" in last)  # values may be wider
    assert after == text or findings


TRIANGLES = [
    "mx.tril(mx.ones((L, L), dtype=mx.bool_))",
    "mx.tril(mx.ones((L, L))).astype(mx.bool_)",
    "mx.tri(L, dtype=mx.bool_)",
    "mx.logical_not(mx.triu(mx.ones((L, L)), k=1))",
    "mx.triu(mx.ones((L, L)), k=1) == 0",
    "mx.tril(mx.ones((L, L))) != 0",
    "mx.where(mx.tril(mx.ones((L, L))) == 0, -1e9, 0.0).astype(q.dtype)",
    "mx.where(mx.tril(mx.ones((L, L))) == 1, 0.0, -mx.inf).astype(q.dtype)",
    "mx.where(mx.tri(L), 0.0, -mx.inf).astype(q.dtype)",
    "((1 - mx.tril(mx.ones((L, L)))) * -1e9).astype(q.dtype)",
    "(mx.triu(mx.ones((L, L)), k=1) * -1e9).astype(q.dtype)",
]
OTHERS = [
    "mx.triu(mx.ones((L, L), dtype=mx.bool_))",
    "mx.tril(mx.ones((L, L), dtype=mx.bool_), k=1)",
    "mx.tril(mx.ones((L, L))).astype(q.dtype)",  # added, and hides nothing
    "mx.tril(mx.ones((L, 2 * L), dtype=mx.bool_))[:, :L]",
    "mx.tri(L, L, 1, dtype=mx.bool_)",
    "((2 - mx.tril(mx.ones((L, L)))) * -1e9).astype(q.dtype)",
    "(mx.tril(mx.ones((L, L))) * -1e9).astype(q.dtype)",
    "mx.tril(mx.ones((L, L))) == 0",
    "mx.where(mx.tril(mx.ones((L, L))) == 2, 0.0, -1e9).astype(q.dtype)",
]


@pytest.mark.parametrize(("mask", "causal"), [*((m, True) for m in TRIANGLES), *((m, False) for m in OTHERS)])
def test_a_triangle_of_ones(mask: str, causal: bool) -> None:
    before = attend(f"return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask={mask})", "q, k, v")
    after, _ = fixed(before)
    assert ('"causal"' in after) is causal
    same(before, after, *arrays((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8)))


GROUPED = f"""{HEAD}def f(q, k, v, mask=None):
    q = q.reshape(2, 2, 3, LENGTH, 64)
    k, v = k.reshape(2, 2, 1, 9, 64), v.reshape(2, 2, 1, 9, 64)
    scores = (q * 0.125) @ k.swapaxes(-1, -2)
    if mask is not None:
        scores = scores + mask
    return mx.softmax(scores, axis=-1) @ v
"""


@pytest.mark.parametrize("length", [9, 1])
def test_groups_over_which_keys_broadcast_are_heads_that_share_them(length: int) -> None:
    """Query head h reads the keys of head h // 3, as the fused op has it; decode takes one query."""
    before = GROUPED.replace("LENGTH", str(length))
    after, found = fixed(before)
    (attention,) = [f for f in found if f.code == "FUS211"]
    assert attention.fix is not None and attention.fix.applicability == "unsafe"
    assert "the mask has two axes" in attention.fix.needs
    assert "q.flatten(1, 2), k.squeeze(2), v.squeeze(2)" in after and "softmax" not in after
    q, k, v = arrays((2, 6 * length, 64), (2, 18, 64), (2, 18, 64))
    mx = pytest.importorskip("mlx.core")
    hidden = mx.where(mx.arange(9)[None] > mx.arange(length)[:, None] + 9 - length, -1e9, 0.0)
    same(before, after, q, k, v)
    same(before, after, q, k, v, hidden)


NINE = GROUPED.replace("LENGTH", "9")


def test_its_kernels_are_one() -> None:
    """Five now: the scale, the product, the mask, the softmax, its product with the values; all is read once then."""
    _, found = fixed(NINE)
    (attention,) = [f for f in found if f.code == "FUS211"]
    assert attention.traffic is not None
    assert (attention.traffic.kernels_now, attention.traffic.kernels_fused) == (5, 1)
    assert attention.traffic.bytes_fused == str(2 * (2 * 6 * 9 * 64 * 2 + 2 * 2 * 9 * 64 * 2) + 2 * 9 * 9)


OTHERS = {
    "keys of each query head": NINE.replace("2, 2, 1, 9, 64", "2, 2, 3, 9, 64"),
    "a mask for each head": NINE.replace("+ mask", "+ mask.reshape(2, 1, 1, 9, 9)"),
    "heads of keys over which queries broadcast": NINE.replace("q.reshape(2, 2, 3", "q.reshape(2, 1, 6"),
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_what_else_has_five_axes_stays(body: str) -> None:
    after, _ = fixed(body)
    assert "scaled_dot_product_attention" not in after


STORED = """
class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_heads

    def __call__(self, q, k, v, mask=None, cache=None):
        B, L, _ = q.shape
        _, S, _ = k.shape
        q = q.reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
        k = k.reshape(B, S, self.heads, -1).transpose(0, 2, 3, 1)
        v = v.reshape(B, S, self.heads, -1).transpose(0, 2, 1, 3)
        if cache is not None:
            k = mx.concatenate([cache[0], k], axis=3)
            v = mx.concatenate([cache[1], v], axis=2)
        scores = q @ k
        if mask is not None:
            scores = scores + mask.astype(scores.dtype)
        weights = mx.softmax(scores.astype(mx.float32), axis=-1).astype(scores.dtype)
        return (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, -1), (k, v)
"""


def test_keys_that_a_cache_keeps_transposed() -> None:
    mx = pytest.importorskip("mlx.core")
    before = HEAD + STORED.strip() + "\n"
    after, (found,) = fixed(before)
    assert "k.transpose(0, 1, 3, 2)" in after and "softmax" not in after
    assert found.traffic is not None
    assert next(n for name, n in found.traffic.at.items() if name in ("S", "keys")) == 2048
    q, k, v, mask = arrays((2, 5, 24), (2, 3, 24), (2, 3, 24), (5, 7))
    cache = tuple(arrays((2, 4, 6, 4), (2, 4, 4, 6)))

    def attended(text: str) -> Any:
        names: dict[str, Any] = {}
        exec(compile(text, "m.py", "exec"), names)
        config = type("Config", (), {"num_heads": 4})()
        return names["Attention"](config)(q, k, v, mask, cache)[0]

    assert mx.allclose(attended(before), attended(after), rtol=1e-4, atol=1e-5).item()


@pytest.mark.parametrize("keys", ["self.memory", "self.memory.T"])
def test_rows_of_a_memory_are_no_keys(keys: str) -> None:
    text = (
        f"{HEAD}class Reads(nn.Module):\n    def __init__(self, dims, n):\n        super().__init__()\n"
        "        self.memory = mx.zeros((dims, n))\n        self.values = mx.zeros((n, dims))\n\n"
        f"    def __call__(self, x):\n        return mx.softmax(x @ {keys}, axis=-1) @ self.values\n"
    )
    assert fixed(text)[0] == text


ONE_HEAD = """
class Attention(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.q = nn.Linear(dims, dims)

    def __call__(self, x):
        B, H, W, C = x.shape
        q = self.q(x).reshape(B, H * W, {width})
        scores = (q * C ** -0.5) @ x.reshape(B, H * W, {width}).transpose(0, 2, 1)
        return mx.softmax(scores, axis=-1) @ x.reshape(B, H * W, {width})
"""


@pytest.mark.parametrize(("width", "reported"), [("C", False), ("64", True)])
def test_one_head_of_all_channels_has_a_kernel_only_where_they_are_known_to_be_few(width: str, reported: bool) -> None:
    _, findings = fixed(HEAD + ONE_HEAD.format(width=width).strip() + "\n")
    assert bool(findings) == reported


SHAPE_CHECKED = """
def f(q, k, v, mask):
    B, H, L, D = q.shape
    scores = (q @ k.transpose(0, 1, 3, 2)) * 0.125
    if scores.shape != (B, H, L, k.shape[2]):
        raise ValueError(f"weights should be otherwise than {scores.shape}")
    scores = scores + mask
    return mx.softmax(scores, axis=-1) @ v
"""


def test_scores_of_which_only_the_shape_is_read_are_never_computed() -> None:
    _, (found,) = fixed(HEAD + SHAPE_CHECKED.strip() + "\n")
    assert found.traffic is not None and found.traffic.kernels_fused == 1


NESTED = f"""{HEAD}class Block(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.proj = nn.Linear(dim, 3 * dim)

    def __call__(self, x: mx.array, mask=None):
        q, k, v = (p.reshape(1, -1, 2, 64).transpose(0, 2, 1, 3) for p in mx.split(self.proj(x), 3, axis=-1))
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125, mask=mask)
        return x + out.transpose(0, 2, 1, 3).reshape(x.shape)


class Decoder(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.layers = [Block(dim) for _ in range(2)]


class Model(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.decoder = Decoder(dim)

    def __call__(self, h: mx.array):
        mask = None
        if h.shape[1] > 1:
            mask = nn.MultiHeadAttention.create_additive_causal_mask(h.shape[1]).astype(h.dtype)
        for i, layer in enumerate(self.decoder.layers):
            h = layer(h, mask)
        return h


def f(h):
    mx.random.seed(3)
    return Model(128)(h)
"""


def test_a_mask_is_followed_into_the_layers_of_a_part() -> None:
    after, found = fixed(NESTED)
    assert [f.code for f in found] == ["FUS102"] and 'mask = "causal"' in after
    (x,) = arrays((1, 7, 128))
    same(NESTED, after, x)
    same(NESTED, after, x[:, :1])


def test_layers_that_something_else_reads_the_mask_in_keep_it() -> None:
    text = NESTED.replace("x + out", "x + mask.sum() + out")
    after, _ = fixed(text)
    assert '"causal"' not in after
