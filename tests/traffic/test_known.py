"""Numbers for sizes: from the user, the configuration, the phase, or assumed; and formulas in the code's own names."""

from __future__ import annotations

import pytest

from fuselint.config import Settings, shape_entries
from fuselint.engine import check_file
from fuselint.finding import Source
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.modelconfig import load
from fuselint.source.text import FileText
from fuselint.traffic.known import Known, known, least_sure, role
from fuselint.traffic.sizes import Sizes, reduced

n, m, k = (Expr.name(x) for x in "nmk")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("B", "batch"), ("batch_size", "batch"), ("bsz", "batch"),
        ("L", "length"), ("seq_len", "length"), ("n_tokens", "length"), ("tokens.shape[1]", "length"),
        ("S", "keys"), ("keys'.shape[2]", "keys"), ("k_cache.shape[-2]", "keys"),
        ("self.n_heads", "heads"), ("num_attention_heads", "heads"), ("H", "heads"),
        ("self.n_kv_heads", "kv_heads"), ("args.num_key_value_heads", "kv_heads"), ("G", "kv_heads"),
        ("self.head_dim", "head"), ("d_head", "head"), ("head_v_dim", "head"), ("hidden_size_per_head", "head"),
        ("self.repeats", "group"), ("n_rep", "group"), ("n_shared_head", "group"), ("args.kv_channels", "head"),
        ("conv_kernel_size", "other"), ("window_size", "span"), ("bsize", "batch"), ("key_states.shape[2]", "keys"),
        ("args.hidden_size", "features"), ("dims", "features"), ("x.shape[-1]", "features"),
        ("args.intermediate_size", "inner"), ("hidden_dim", "inner"),
        ("args.vocab_size", "vocabulary"), ("num_experts", "experts"), ("num_experts_per_tok", "chosen"),
        ("d_kv", "head"), ("x.shape[0]", "batch"), ("foo", "other"), ("self.num_v_heads", "kv_heads"),
        ("args.ssm_state_size", "state"), ("d_state", "state"), ("n_state", "features"),
        ("linear.weight.shape[0]", "features"), ("conv.weight.shape[1]", "other"),
    ],
)  # fmt: skip
def test_what_a_name_is_for(name: str, what: str) -> None:
    assert role(name) == what


def test_a_place_decides_where_a_name_says_nothing() -> None:
    assert role("foo", "heads") == "heads"
    assert role("q.shape[1]", "heads") == "heads"
    assert role("D", "head") == "head"
    assert role("keys'.shape[2]", "head") == "keys"  # scores
    assert role("keys.shape[2]", "heads") == "heads"  # keys that are not transposed yet
    assert role("linear.weight.shape[1]", "features") == "features"
    assert role("x.shape[-1]", "group") == "features"  # the last axis is none of several that it was split into


@pytest.mark.parametrize(
    ("phase", "sizes"), [("", (1, 2048, 2048, 2048)), ("prefill", (1, 2048, 2048, 2048)),
                         ("decode", (1, 1, 2048, 1)), ("train", (8, 2048, 2048, 16384))],
)  # fmt: skip
def test_phases(phase: str, sizes: tuple[int, ...]) -> None:
    here = known(Settings(phase=phase), "f")
    found = [here.of_role(r) for r in ("batch", "length", "keys", "rows")]
    assert found == [(size, "phase" if phase else "assumed") for size in sizes]
    assert here.phase.training == (phase == "train")


def test_what_the_user_states_of_a_phase_is_followed() -> None:
    here = known(Settings(phase="prefill", shape=shape_entries(["B=2,L=512"], "--shape")), "f")
    found = [here.of_role(r) for r in ("batch", "length", "keys", "rows")]
    assert found == [(2, "stated"), (512, "stated"), (512, "stated"), (1024, "stated")]
    decode = known(Settings(phase="decode", shape={"L": 4, "f.S": 100}), "f")
    assert decode.of_role("keys") == (100, "stated")
    assert known(Settings(phase="decode", shape={"L": 4}), "f").of_role("keys") == (2048, "phase")  # what is cached


def test_a_configuration_gives_what_nothing_else_says() -> None:
    here = known(Settings(model_config=load("qwen2.5-7b", "x")), "f")
    found = {r: here.of_role(r) for r in ("features", "heads", "kv_heads", "head", "group", "inner", "vocabulary")}
    assert found == {
        "features": (3584, "config"), "heads": (28, "config"), "kv_heads": (4, "config"), "head": (128, "config"),
        "group": (7, "config"), "inner": (18944, "config"), "vocabulary": (152064, "config"),
    }  # fmt: skip


def test_assumed_head_counts_are_those_of_a_model_that_exists() -> None:
    here = Known()
    heads, kept, group, head, features = (
        here.of_role(r)[0] for r in ("heads", "kv_heads", "group", "head", "features")
    )
    assert (heads, kept, group, head, features) == (32, 8, 4, 128, 4096)
    assert heads == kept * group and features == heads * head


def test_what_nothing_says_is_that_of_a_typical_model() -> None:
    here = Known()
    assert here.of_role("features") == (4096, "typical")
    assert here.of_role("other") == (1, "typical")
    assert here.of_role("head rows") == (32 * 2048, "typical")  # the rows are those of the usual phase
    configured = known(Settings(model_config=load("qwen2.5-7b", "x")), "f")
    assert configured.of_role("state") == (16, "typical")
    assert configured.of_role("head rows") == (28 * 2048, "assumed")


def test_a_number_is_as_sure_as_the_least_sure_of_what_it_is_made_of() -> None:
    sources: list[Source] = ["stated", "recorded", "config", "phase", "assumed", "typical"]
    for i, worse in enumerate(sources):
        assert all(least_sure((better, worse)) == worse for better in sources[: i + 1])
    assert least_sure(()) == "stated"
    sizes = Sizes(meanings={"N": Expr.name("dims") * Expr.name("length")})
    assert sizes.number("N", Known()) == (4096 * 2048, "typical")
    assert sizes.number("N", Known(usual={"dims": 8})) == (8 * 2048, "assumed")


def test_stated_comes_before_configured_before_assumed() -> None:
    here = Known(stated={"n": 1}.get, configured={"n": 2, "m": 2}.get)
    assert [here.number(x) for x in "nmk"] == [(1, "stated"), (2, "config"), None]


def test_a_name_takes_the_number_of_what_it_means() -> None:
    sizes = Sizes(meanings={"D": Expr.name("dims") // Expr.name("n_heads")})
    here = Known(stated={"dims": 512, "n_heads": 8}.get)
    assert sizes.number("D", here) == (64, "stated")
    assert sizes.number("D", Known(stated={"D": 3, "dims": 512}.get)) == (3, "stated")


def test_sizes_that_meet_are_equal() -> None:
    x, w = Expr.name("x.shape[-1]"), Expr.name("dims")
    sizes = Sizes.plain([Shape(None, (x,))], [(x, w)])
    assert sizes.number("x.shape[-1]", Known(stated={"dims": 96}.get)) == (96, "stated")


def test_counts_of_heads_divide_each_other() -> None:
    assert reduced(n * (m // n)) == m
    assert reduced(k * n * (m // n) + n) == k * m + n
    assert reduced(m // n) == m // n
    assert reduced((n * 2) * (m // (n * 2))) == reduced(2 * n * (m // (2 * n)))


def test_axes_without_a_name_print_as_letters_and_say_what_they_are() -> None:
    q = Shape(None, tuple(Expr.name(x) for x in ("q.shape[0]", "heads", "q.shape[2]", "head_dim")))
    sizes = Sizes.of([q])
    formula = sizes.elements(q)
    assert str(formula) == "B*L*head_dim*heads"
    assert (sizes.meaning("B"), sizes.meaning("L")) == ("q.shape[0]", "q.shape[2]")
    assert sizes.number("L", Known()) == (2048, "assumed")


def test_tokens_are_rows_of_what_is_looked_up_for_them() -> None:
    tokens, rows = Shape("tokens", ()), Shape("tokens", (Expr.name("dims"),))
    sizes = Sizes.plain([tokens, rows])
    assert (str(sizes.elements(tokens)), str(sizes.elements(rows))) == ("T", "T*dims")


def test_the_middle_axis_of_three_is_a_length_whatever_its_letter() -> None:
    """`B, T, C = x.shape`, where T isn't the rows of an array of unknown rank."""
    x = Shape(None, tuple(Expr.name(n) for n in "BTC"))
    sizes = Sizes.plain([x])
    train = known(Settings(phase="train"), "f")
    assert [sizes.number(n, train)[0] for n in "BTC"] == [8, 2048, 4096]


def test_a_size_that_is_only_computed_prints_as_a_letter() -> None:
    x = Shape(None, (Expr.name("B"), Expr.name("L"), Expr.name("%6")))
    sizes = Sizes.of([x])
    assert str(sizes.elements(x)) == "B*L*D"
    assert sizes.meaning("D") == "D"


def test_a_size_that_meets_a_clearer_one_prints_as_that() -> None:
    product = Expr.name("out.shape[1]") * Expr.name("out.shape[3]")
    gate = Shape(None, (Expr.name("L"), Expr.name("heads") * Expr.name("head_dim")))
    out = Shape(None, (Expr.name("L"), product))
    sizes = Sizes.of([out, gate], [(out, gate)])
    assert str(sizes.elements(out)) == "L*head_dim*heads"


@pytest.mark.parametrize(
    ("axes", "said"),
    [("-4 -3 1", "B*L"), ("-3 -2", "B*L"), ("-4 -3 -2", "B*H*L"), ("-3 1", "B"), ("-2 1", "B")],
)
def test_outer_axes_of_an_array_of_unknown_rank_have_one_letter_each(axes: str, said: str) -> None:
    dims = [Expr.of(1) if a == "1" else Expr.name(f"x.shape[{a}]") for a in axes.split()]
    table = Shape(None, (*dims, Expr.name("width")))
    sizes = Sizes.of([Shape("q", ()), table])
    assert str(sizes.elements(table)) == f"{said}*width"


def test_shapes_that_nobody_states_are_followed_once() -> None:
    """Each step reads the one before twice: looked at anew each time, there would be 2**40 of them."""
    steps = "".join(f"    if c{i % 3}:\n        x = x * y + x\n" for i in range(40))
    source = f"import mlx.core as mx\n\n\ndef f(x, y: mx.array, c0, c1, c2):\n{steps}    return mx.exp(x * y) + 1\n"
    result = check_file(FileText("m.py", source), Settings(select=("FUS301",)))
    assert [f.code for f in result.findings][-1:] == ["FUS301"]


def test_names_that_mean_each_other_have_the_number_of_their_role() -> None:
    sizes = Sizes.plain([Shape.of(Expr.name("a"), Expr.name("b"))])
    sizes.meanings.update({"a": Expr.name("b") * 2, "b": Expr.name("a") // 2})
    assert sizes.number("a", Known())[0] >= 1


PAIRS = {
    "sides": ("batch height width channels", "height width", 32),
    "letters": ("B H W C", "H W", 32),
    "a recurrent state": ("B H K V", "K V", 128),
}


@pytest.mark.parametrize(("axes", "pair", "number"), PAIRS.values(), ids=PAIRS)
def test_two_names_that_stand_together(axes: str, pair: str, number: int) -> None:
    sizes = Sizes.of([Shape(None, tuple(map(Expr.name, axes.split())))])
    assert [sizes.number(name, Known())[0] for name in pair.split()] == [number, number]


def test_two_names_of_two_shapes_are_no_pair() -> None:
    """The best k of a vocabulary."""
    sizes = Sizes.of([Shape(None, tuple(map(Expr.name, axes))) for axes in (("B", "K"), ("B", "V"))])
    assert sizes.number("V", Known())[0] == 128256


def test_keys_beside_the_heads_of_scores_are_keys() -> None:
    axes = "B heads L k'.shape[2]".split()
    sizes = Sizes.of([Shape(None, tuple(map(Expr.name, axes)))])
    (letter,) = (name for name in sizes.elements(Shape(None, (Expr.name("k'.shape[2]"),))).names)
    assert (letter, sizes.number(letter, Known())[0]) == ("S", 2048)
