"""Placing templates: text in, text out."""

from __future__ import annotations

import time

import pytest
from source.placing import HEAD, RMS, becomes, placed, program_of, stays, value

from fuselint.finding import Edit
from fuselint.rulebook import HoistedHelper, Hole, Match, NoFix, Part, Replacement, Synthesised
from fuselint.source.edit import Placement, apply, compatible, joined, merge, place
from fuselint.source.removal import normalised


def test_one_expression() -> None:
    becomes(
        """
        def norm(x, w):
            return x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + 1e-5) * w
        """,
        """
        def norm(x, w):
            return mx.fast.rms_norm(x, w, 1e-5)
        """,
        "x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + 1e-5) * w",
        x="param:x",
        w="param:w",
        eps="1e-5",
    )


def test_the_input_is_rebound() -> None:
    """The trap: h is float32 where the result is made. Its rebinding dies, and h is the argument again."""
    becomes(
        """
        def norm(h, w, eps):
            dt = h.dtype
            h = h.astype(mx.float32)
            v = mx.mean(h * h, -1, keepdims=True)
            h = h * mx.rsqrt(v + eps)
            return (w * h).astype(dt)
        """,
        """
        def norm(h, w, eps):
            return mx.fast.rms_norm(h, w, eps)
        """,
        "(w * h).astype(dt)",
        x="param:h",
        w="param:w",
        eps="param:eps",
    )


def test_the_rebound_input_is_read_again() -> None:
    """Then the rebinding stays, and the argument is kept under another name."""
    becomes(
        """
        def norm(h, w, eps):
            h = h.astype(mx.float32)
            v = mx.mean(h * h, -1, keepdims=True)
            return w * (h * mx.rsqrt(v + eps)), h
        """,
        """
        def norm(h, w, eps):
            raw_h = h
            h = h.astype(mx.float32)
            return mx.fast.rms_norm(raw_h, w, eps), h
        """,
        "w * (h * mx.rsqrt(v + eps))",
        x="param:h",
        w="param:w",
        eps="param:eps",
    )


def test_a_value_that_is_also_returned_stays() -> None:
    becomes(
        """
        def norm(x, w, eps):
            v = mx.mean(x * x, -1, keepdims=True)
            n = x * mx.rsqrt(v + eps)
            return n * w, v
        """,
        """
        def norm(x, w, eps):
            v = mx.mean(x * x, -1, keepdims=True)
            return mx.fast.rms_norm(x, w, eps), v
        """,
        "n * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_operands_are_evaluated_where_they_stood() -> None:
    text, done = placed(
        """
        class MLP(nn.Module):
            def __call__(self, x):
                return self.down(nn.silu(self.gate(x)) * self.up(x))
        """,
        "nn.silu(self.gate(x)) * self.up(x)",
        "{mx}.fast.gate({g}, {u})",
        {"g": "self.gate(x)", "u": "self.up(x)"},
    )
    assert isinstance(done, Placement)
    assert "return self.down(mx.fast.gate(self.gate(x), self.up(x)))\n" in text


def test_an_operand_moves_out_of_a_dead_statement() -> None:
    becomes(
        """
        class MLP(nn.Module):
            def __call__(self, x):
                g = nn.silu(self.gate(x))
                return g * self.up(x)
        """,
        """
        class MLP(nn.Module):
            def __call__(self, x):
                return mx.fast.gate(self.gate(x), self.up(x))
        """,
        "g * self.up(x)",
        "{mx}.fast.gate({g}, {u})",
        g="self.gate(x)",
        u="self.up(x)",
    )


def test_an_operand_keeps_its_place_where_its_names_change() -> None:
    becomes(
        """
        class MLP(nn.Module):
            def __call__(self, x):
                g = nn.silu(self.gate(x))
                x = self.norm(x)
                return g * self.up(x)
        """,
        """
        class MLP(nn.Module):
            def __call__(self, x):
                g = self.gate(x)
                x = self.norm(x)
                return mx.fast.gate(g, self.up(x))
        """,
        "g * self.up(x)",
        "{mx}.fast.gate({g}, {u})",
        g="self.gate(x)",
        u="self.up(x)",
    )


def test_an_unknown_call_does_not_pass_another() -> None:
    """`self.gate(x)` may do anything, and so may `self.log(x)`: they keep their order."""
    becomes(
        """
        class MLP(nn.Module):
            def __call__(self, x):
                g = nn.silu(self.gate(x))
                self.log(x)
                return g * x
        """,
        """
        class MLP(nn.Module):
            def __call__(self, x):
                g = self.gate(x)
                self.log(x)
                return mx.fast.gate(g, x)
        """,
        "g * x",
        "{mx}.fast.gate({g}, {u})",
        g="self.gate(x)",
        u="param:x",
    )


def test_an_operand_is_not_evaluated_twice() -> None:
    becomes(
        """
        def f(x, w):
            # gated
            return nn.silu(g(x)) * w
        """,
        """
        def f(x, w):
            # gated
            gate = g(x)
            return mx.fast.gate(gate, gate, w)
        """,
        "nn.silu(g(x)) * w",
        "{mx}.fast.gate({gate}, {gate}, {w})",
        gate="g(x)",
        w="param:w",
    )
    stays(
        """
        def f(x, w, flag):
            return nn.silu(g(x)) * w if flag else w
        """,
        "evaluated twice",
        "nn.silu(g(x)) * w",
        "{mx}.fast.gate({gate}, {gate}, {w})",
        gate="g(x)",
        w="param:w",
    )


def test_scalars_are_written_again() -> None:
    becomes(
        """
        import math

        def f(q, k):
            d = q.shape[-1]
            q = q / math.sqrt(d)
            return q @ k.swapaxes(-1, -2)
        """,
        """
        import math

        def f(q, k):
            d = q.shape[-1]
            return mx.fast.scores(q, k, scale=1 / math.sqrt(d))
        """,
        "q @ k.swapaxes(-1, -2)",
        "{mx}.fast.scores({q}, {k}, scale=1 / {s})",
        q="param:q",
        k="param:k",
        s="math.sqrt(d)",
    )


def test_synthesised_scalars() -> None:
    graph = program_of(HEAD + "def f(q, k):\n    return (q * q.shape[-1] ** -0.5) @ k\n").graph("f")
    assert graph is not None and graph.program is not None
    root = value(graph, "(q * q.shape[-1] ** -0.5) @ k")
    q, k = graph.params["q"], graph.params["k"]
    holes: dict[str, Hole] = {"q": q, "k": k, "s": Synthesised("{q}.shape[-1] ** -0.5", {"q": q})}
    parts = (Part(root, "{mx}.fast.scores({q}, {k}, scale={s})"),)
    match = Match("FUS000", root, holes, "", [], frozenset())
    done = place(graph, match, Replacement(parts, holes), graph.program)
    assert isinstance(done, Placement), done
    assert done.shown == "mx.fast.scores(q, k, scale=q.shape[-1] ** -0.5)"


def test_comments_of_deleted_code_move_above_the_call() -> None:
    becomes(
        """
        def norm(x, w, eps):
            # In float32, since x * x overflows.
            y = x.astype(mx.float32)  # a copy
            z = w + 1  # stays

            # The variance
            v = mx.mean(
                y * y,  # the square
                -1,
                keepdims=True,
            )
            # The result
            return (y * mx.rsqrt(v + eps)).astype(x.dtype) * w, z  # cast back
        """,
        """
        def norm(x, w, eps):
            z = w + 1  # stays

            # In float32, since x * x overflows.
            # a copy
            # The variance
            # the square
            # The result
            return mx.fast.rms_norm(x, w, eps), z  # cast back
        """,
        "(y * mx.rsqrt(v + eps)).astype(x.dtype) * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_a_comment_to_a_tool_goes_with_its_line() -> None:
    becomes(
        """
        def norm(x, w, eps):
            v = mx.mean(x * x, -1, keepdims=True)  # noqa: E501
            return x * mx.rsqrt(v + eps) * w
        """,
        """
        def norm(x, w, eps):
            return mx.fast.rms_norm(x, w, eps)
        """,
        "x * mx.rsqrt(v + eps) * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_comments_inside_the_replaced_expression() -> None:
    becomes(
        """
        def norm(x, w, eps):
            return (
                x  # the input
                * mx.rsqrt(
                    mx.mean(x * x, -1, keepdims=True) + eps  # the root mean square
                )
                * w
            )
        """,
        """
        def norm(x, w, eps):
            # the input
            # the root mean square
            return mx.fast.rms_norm(x, w, eps)
        """,
        "x # the input * mx.rsqrt( mx.mean(x * x, -1, keepdims=True) + eps # the root mean square ) * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_semicolons() -> None:
    becomes(
        """
        def norm(x, w, eps):
            a = 1; v = mx.mean(x * x, -1, keepdims=True); b = 2
            v = v + eps; r = mx.rsqrt(v); n = x * r; return n * w, a, b
        """,
        """
        def norm(x, w, eps):
            a = 1; b = 2
            return mx.fast.rms_norm(x, w, eps), a, b
        """,
        "n * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_an_if_whose_arms_die_goes() -> None:
    becomes(
        """
        def attend(q, k, v, mask=None):
            s = q @ k.swapaxes(-1, -2)
            if mask is not None:
                s = s + mask
            return mx.softmax(s, -1) @ v
        """,
        """
        def attend(q, k, v, mask=None):
            return mx.fast.attend(q, k, v, mask)
        """,
        "mx.softmax(s, -1) @ v",
        "{mx}.fast.attend({q}, {k}, {v}, {m})",
        q="param:q",
        k="param:k",
        v="param:v",
        m="param:mask",
    )


def test_a_one_line_if() -> None:
    becomes(
        """
        def attend(q, k, v, mask=None):
            s = q @ k.swapaxes(-1, -2)
            if mask is not None: s = s + mask
            return mx.softmax(s, -1) @ v
        """,
        """
        def attend(q, k, v, mask=None):
            return mx.fast.attend(q, k, v, mask)
        """,
        "mx.softmax(s, -1) @ v",
        "{mx}.fast.attend({q}, {k}, {v}, {m})",
        q="param:q",
        k="param:k",
        v="param:v",
        m="param:mask",
    )


def test_an_arm_that_lives_keeps_its_if() -> None:
    becomes(
        """
        def attend(q, k, v, mask=None):
            s = q @ k.swapaxes(-1, -2)
            if mask is not None:
                # additive
                s = s + mask
            else:
                print("no mask")
            return mx.softmax(s, -1) @ v
        """,
        """
        def attend(q, k, v, mask=None):
            if mask is not None:
                pass
            else:
                print("no mask")
            # additive
            return mx.fast.attend(q, k, v, mask)
        """,
        "mx.softmax(s, -1) @ v",
        "{mx}.fast.attend({q}, {k}, {v}, {m})",
        q="param:q",
        k="param:k",
        v="param:v",
        m="param:mask",
    )


def test_a_dead_else_goes() -> None:
    becomes(
        """
        def f(x, flag):
            if flag:
                print("flag")
                y = x * 2
            else:
                y = x * 3
            return mx.exp(y)
        """,
        """
        def f(x, flag):
            if flag:
                print("flag")
            return mx.fast.g(x)
        """,
        "mx.exp(y)",
        "{mx}.fast.g({x})",
        x="param:x",
    )


def test_a_test_that_may_do_something_stays() -> None:
    text, done = placed(
        """
        def f(x, flags):
            y = x
            if flags.pop():
                y = x * 2
            return mx.exp(y)
        """,
        "mx.exp(y)",
        "{mx}.fast.g({x})",
        {"x": "param:x"},
    )
    assert isinstance(done, Placement)
    assert text.endswith("    if flags.pop():\n        pass\n    return mx.fast.g(x)\n")


def test_calls_with_effects_stay() -> None:
    text, done = placed(
        """
        def f(x, cache):
            y = mx.exp(cache.update(x))
            return y * 2
        """,
        "y * 2",
        "{mx}.fast.g({x})",
        {"x": "param:x"},
    )
    assert isinstance(done, Placement)
    assert "y = mx.exp(cache.update(x))\n" in text


def test_a_call_with_effects_inside_the_replaced_code() -> None:
    stays(
        """
        def f(x, cache):
            return mx.exp(cache.update(x)) * 2
        """,
        "may have an effect",
        "mx.exp(cache.update(x)) * 2",
        "{mx}.fast.g({x})",
        x="param:x",
    )


def test_random_draws_stay() -> None:
    stays(
        """
        def f(x):
            return (x + mx.random.normal(x.shape)) * 2
        """,
        "may have an effect",
        "(x + mx.random.normal(x.shape)) * 2",
        "{mx}.fast.g({x})",
        x="param:x",
    )


def test_an_alias_that_is_changed_in_place() -> None:
    """`y += 1` changes the caller's x as well: an effect, which stays."""
    text, done = placed(
        """
        def f(x: mx.array):
            y = x
            y += 1
            return mx.exp(y) * 2
        """,
        "mx.exp(y) * 2",
        "{mx}.fast.g({y})",
        {"y": "y"},
    )
    assert isinstance(done, Placement), done
    assert text.endswith("    y = x\n    y += 1\n    return mx.fast.g(y)\n") or text.endswith(
        "    y = x\n    y += 1\n    return mx.fast.g(x)\n"
    )


def test_the_value_before_a_change_in_place_is_lost() -> None:
    stays(
        """
        def f(x: mx.array):
            y = mx.exp(x)
            x += 1
            return y * 2, x
        """,
        "",
        "y * 2",
        "{mx}.fast.g({x})",
        x="param:x",
    )


def test_augmented_assignment_as_the_root() -> None:
    becomes(
        """
        def f(x, w, eps):
            n = x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps)
            n *= w
            return n
        """,
        """
        def f(x, w, eps):
            n = mx.fast.rms_norm(x, w, eps)
            return n
        """,
        "n *= w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_in_a_loop() -> None:
    becomes(
        """
        def f(xs, w, eps):
            out = []
            for x in xs:
                v = mx.mean(x * x, -1, keepdims=True)
                out.append(x * mx.rsqrt(v + eps) * w)
            return out
        """,
        """
        def f(xs, w, eps):
            out = []
            for x in xs:
                out.append(mx.fast.rms_norm(x, w, eps))
            return out
        """,
        "x * mx.rsqrt(v + eps) * w",
        x="x",
        w="param:w",
        eps="param:eps",
    )


def test_a_value_carried_around_a_loop() -> None:
    becomes(
        """
        def f(x, w, eps, n):
            for i in range(n):
                v = mx.mean(x * x, -1, keepdims=True)
                x = x * mx.rsqrt(v + eps) * w
            return x
        """,
        """
        def f(x, w, eps, n):
            for i in range(n):
                x = mx.fast.rms_norm(x, w, eps)
            return x
        """,
        "x * mx.rsqrt(v + eps) * w",
        x="x~1",
        w="param:w",
        eps="param:eps",
    )


def test_a_value_read_in_the_next_turn_stays() -> None:
    text, done = placed(
        """
        def f(x, w, eps, n):
            v = x
            for i in range(n):
                x = x + v
                v = mx.mean(x * x, -1, keepdims=True)
                y = x * mx.rsqrt(v + eps) * w
            return y
        """,
        "x * mx.rsqrt(v + eps) * w",
        RMS,
        {"x": "x", "w": "param:w", "eps": "param:eps"},
    )
    assert isinstance(done, Placement), done
    assert "        v = mx.mean(x * x, -1, keepdims=True)\n        y = mx.fast.rms_norm(x, w, eps)\n" in text


def test_in_a_comprehension() -> None:
    becomes(
        """
        def f(xs, w, eps):
            return [x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w for x in xs]
        """,
        """
        def f(xs, w, eps):
            return [mx.fast.rms_norm(x, w, eps) for x in xs]
        """,
        "x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w",
        x="x~1",
        w="param:w",
        eps="param:eps",
    )


def test_names_that_a_nested_function_reads_stay() -> None:
    text, done = placed(
        """
        def f(x, w, eps):
            v = mx.mean(x * x, -1, keepdims=True)
            n = x * mx.rsqrt(v + eps)
            debug(lambda: n)
            return n * w
        """,
        "n * w",
        RMS,
        {"x": "param:x", "w": "param:w", "eps": "param:eps"},
    )
    assert isinstance(done, Placement)
    assert "n = x * mx.rsqrt(v + eps)\n" in text
    assert "return mx.fast.rms_norm(x, w, eps)\n" in text


def test_locals_reads_everything() -> None:
    text, done = placed(
        """
        def f(x, w, eps):
            v = mx.mean(x * x, -1, keepdims=True)
            debug(locals())
            return x * mx.rsqrt(v + eps) * w
        """,
        "x * mx.rsqrt(v + eps) * w",
        RMS,
        {"x": "param:x", "w": "param:w", "eps": "param:eps"},
    )
    assert isinstance(done, NoFix) or "v = mx.mean" in text


def test_early_return() -> None:
    becomes(
        """
        def f(x, w, eps, raw):
            n = x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps)
            if raw:
                return n
            return n * w
        """,
        """
        def f(x, w, eps, raw):
            n = x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps)
            if raw:
                return n
            return mx.fast.rms_norm(x, w, eps)
        """,
        "n * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_walrus() -> None:
    becomes(
        """
        def f(x, w, eps):
            return x * mx.rsqrt((v := mx.mean(x * x, -1, keepdims=True)) + eps) * w
        """,
        """
        def f(x, w, eps):
            return mx.fast.rms_norm(x, w, eps)
        """,
        "x * mx.rsqrt((v := mx.mean(x * x, -1, keepdims=True)) + eps) * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_a_walrus_that_is_read_later() -> None:
    stays(
        """
        def f(x, w, eps):
            y = x * mx.rsqrt((v := mx.mean(x * x, -1, keepdims=True)) + eps) * w
            return y, v
        """,
        "`v`",
        "x * mx.rsqrt((v := mx.mean(x * x, -1, keepdims=True)) + eps) * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_inside_a_larger_expression() -> None:
    becomes(
        """
        def f(x, w, eps):
            return mx.exp((x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w).sum(-1)) @ w.T
        """,
        """
        def f(x, w, eps):
            return mx.exp(mx.fast.rms_norm(x, w, eps).sum(-1)) @ w.T
        """,
        "x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_return_without_a_space() -> None:
    becomes(
        """
        def f(x, w, eps):
            return(x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w)
        """,
        """
        def f(x, w, eps):
            return mx.fast.rms_norm(x, w, eps)
        """,
        "x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_operands_that_are_no_names_get_parentheses_where_they_need_them() -> None:
    becomes(
        """
        def f(x, y):
            return mx.exp(x + y) * 2
        """,
        """
        def f(x, y):
            return mx.fast.g((x + y).T)
        """,
        "mx.exp(x + y) * 2",
        "{mx}.fast.g({s}.T)",
        s="x + y",
    )


def test_templates_that_are_no_calls() -> None:
    becomes(
        """
        def f(x, y):
            return mx.exp(x).T * y
        """,
        """
        def f(x, y):
            return (x @ y).T * y
        """,
        "mx.exp(x)",
        "{x} @ {y}",
        x="param:x",
        y="param:y",
    )


def test_long_calls_are_broken_as_black_does() -> None:
    becomes(
        """
        def attention(queries, keys, values, mask, scale_of_the_scores):
            return mx.softmax(queries @ keys.swapaxes(-1, -2) * scale_of_the_scores + mask, -1) @ values
        """,
        """
        def attention(queries, keys, values, mask, scale_of_the_scores):
            return mx.fast.scaled_dot_product_attention(
                queries, keys, values, scale=scale_of_the_scores, mask=mask
            )
        """,
        "mx.softmax(queries @ keys.swapaxes(-1, -2) * scale_of_the_scores + mask, -1) @ values",
        "{mx}.fast.scaled_dot_product_attention({q}, {k}, {v}, scale={s}, mask={m})",
        q="param:queries",
        k="param:keys",
        v="param:values",
        s="param:scale_of_the_scores",
        m="param:mask",
    )


def test_a_call_inside_brackets_that_is_too_long_breaks_the_whole_value() -> None:
    becomes(
        """
        def joined(first_operand, second_operand, third_operand):
            return mx.concatenate([first_operand * second_operand, third_operand], axis=-1)
        """,
        """
        def joined(first_operand, second_operand, third_operand):
            return mx.concatenate(
                [mx.fast.product(first_operand, second_operand), third_operand], axis=-1
            )
        """,
        "first_operand * second_operand",
        "{mx}.fast.product({a}, {b})",
        a="param:first_operand",
        b="param:second_operand",
    )


def test_an_argument_on_a_line_of_its_own_breaks_alone() -> None:
    becomes(
        """
        def joined(first_operand, second_operand, third_operand):
            return mx.concatenate(
                first_operand_of_all(
                    first_operand * second_operand * (third_operand + 1) + third_operand * 2,
                    third_operand,
                ),
            )
        """,
        """
        def joined(first_operand, second_operand, third_operand):
            return mx.concatenate(
                first_operand_of_all(
                    mx.fast.product(
                        first_operand, second_operand, third_operand + 1, third_operand * 2
                    ),
                    third_operand,
                ),
            )
        """,
        "first_operand * second_operand * (third_operand + 1) + third_operand * 2",
        "{mx}.fast.product({a}, {b}, {c}, {d})",
        a="param:first_operand",
        b="param:second_operand",
        c="third_operand + 1",
        d="third_operand * 2",
    )


def test_chains_of_methods_are_broken_as_black_does() -> None:
    becomes(
        """
        def attention(queries, keys, values, mask, scale):
            scores = queries @ keys.swapaxes(-1, -2) * scale + mask
            output = (mx.softmax(scores, -1) @ values).transpose(0, 2, 1, 3).flatten(-2)
            return output
        """,
        """
        def attention(queries, keys, values, mask, scale):
            output = (
                mx.fast.scaled_dot_product_attention(
                    queries, keys, values, scale=scale, mask=mask
                )
                .transpose(0, 2, 1, 3)
                .flatten(-2)
            )
            return output
        """,
        "mx.softmax(scores, -1) @ values",
        "{mx}.fast.scaled_dot_product_attention({q}, {k}, {v}, scale={s}, mask={m})",
        q="param:queries",
        k="param:keys",
        v="param:values",
        s="param:scale",
        m="param:mask",
    )


def test_a_broken_call_that_fits_now_is_joined() -> None:
    """As a formatter does, unless a comma keeps it broken, or it never was broken as a formatter does."""
    norm = {"x": "param:x", "w": "param:w", "eps": "param:eps"}
    formula = "x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w"
    before = f"""
        def summed(x, w, eps):
            return mx.sum(
                {formula}, axis=a_rather_long_axis
            )
        """
    joined = """
        def summed(x, w, eps):
            return mx.sum(mx.fast.rms_norm(x, w, eps), axis=a_rather_long_axis)
        """
    becomes(before, joined, formula, **norm)
    for kept in ("axis=a_rather_long_axis,", "an_argument_after_it", "axis=a_rather_long_axis  # of all"):
        text = before.replace("axis=a_rather_long_axis", kept)
        if kept == "an_argument_after_it":
            text = text.replace(f"{formula},", f"{formula},\n               ")
        becomes(text, text.replace(formula, "mx.fast.rms_norm(x, w, eps)"), formula, **norm)


def test_what_stands_in_parentheses_over_lines_and_fits_now_loses_them() -> None:
    becomes(
        """
        def gated(x, w, eps, gate):
            return (
                x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w
                + gate_of_the_layer(gate)
            )
        """,
        """
        def gated(x, w, eps, gate):
            return mx.fast.rms_norm(x, w, eps) + gate_of_the_layer(gate)
        """,
        "x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


def test_two_values_of_an_argument_are_laid_out_together() -> None:
    source = """
        def turned(real_part, imaginary_part, cosines_of_all, sines_of_all):
            return mx.stack(
                [real_part * cosines_of_all, imaginary_part * sines_of_all],  # turned
                axis=-1,
            )
        """
    laid = """
        def turned(real_part, imaginary_part, cosines_of_all, sines_of_all):
            return mx.stack(
                [
                    mx.multiply(real_part, cosines_of_all),
                    mx.multiply(imaginary_part, sines_of_all),
                ],  # turned
                axis=-1,
            )
        """
    roots = ("real_part * cosines_of_all", "imaginary_part * sines_of_all")
    holes = {"a": "param:real_part", "b": "param:cosines_of_all"}
    holes |= {"c": "param:imaginary_part", "d": "param:sines_of_all"}
    becomes(source, laid, roots, ("{mx}.multiply({a}, {b})", "{mx}.multiply({c}, {d})"), **holes)


def test_two_values_of_a_statement_are_laid_out_together() -> None:
    becomes(
        """
        def turned(real_part, imaginary_part, cosines, sines):
            return mx.stack([real_part * cosines, imaginary_part * sines], axis=-1).astype(mx.float16).flatten(-2)
        """,
        """
        def turned(real_part, imaginary_part, cosines, sines):
            return (
                mx.stack([mx.multiply(real_part, cosines), mx.multiply(imaginary_part, sines)], axis=-1)
                .astype(mx.float16)
                .flatten(-2)
            )
        """,
        ("real_part * cosines", "imaginary_part * sines"),
        ("{mx}.multiply({a}, {b})", "{mx}.multiply({c}, {d})"),
        a="param:real_part",
        b="param:cosines",
        c="param:imaginary_part",
        d="param:sines",
    )


def test_no_blank_lines_are_left_at_the_end_of_a_file() -> None:
    """Also where two that stand beside each other go."""
    source = """
        class Norm:
            def __call__(self, x, w, eps):
                return self._normed(x, eps) * w

            @staticmethod
            def _normed(x, eps):
                return x * Norm._scale(x, eps)

            @staticmethod
            def _scale(x, eps):
                return mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps)
        """
    becomes(
        source,
        """
        class Norm:
            def __call__(self, x, w, eps):
                return mx.fast.rms_norm(x, w, eps)
        """,
        "self._normed(x, eps) * w",
        function="Norm.__call__",
        x="param:x",
        w="param:w",
        eps="param:eps",
    )


NORM = """def norm(x, w, eps):
    # square
    v = mx.mean(x * x, -1, keepdims=True)

    return x * mx.rsqrt(v + eps) * w
"""
FIXED = """def norm(x, w, eps):
    # square
    return mx.fast.rms_norm(x, w, eps)
"""


def test_line_endings_and_tabs_are_kept() -> None:
    for old, new in (("\n", "\r\n"), ("    ", "\t"), ("    ", "  ")):
        text, done = placed(
            (HEAD + NORM).replace(old, new),
            "x * mx.rsqrt(v + eps) * w",
            RMS,
            {"x": "param:x", "w": "param:w", "eps": "param:eps"},
            newline=new if old == "\n" else "\n",
        )
        assert isinstance(done, Placement), done
        assert text == (HEAD + FIXED).replace(old, new)


def test_text_that_is_not_ascii() -> None:
    text, done = placed(
        HEAD + NORM.replace("# square", "# carré ²").replace("def norm", 'NAME = "é😀"; π = 3\n\n\ndef norm'),
        "x * mx.rsqrt(v + eps) * w",
        RMS,
        {"x": "param:x", "w": "param:w", "eps": "param:eps"},
    )
    assert isinstance(done, Placement), done
    assert "    # carré ²\n    return mx.fast.rms_norm(x, w, eps)\n" in text


def test_decorators_docstrings_and_other_functions_are_left_alone() -> None:
    source = '''
import mlx.core as mx


@decorate(
    1,
)
def norm(x, w, eps):
    """Normalise.

      indented   text
    """
    v = mx.mean(x * x, -1, keepdims=True)
    return x * mx.rsqrt(v + eps) * w


def other( x ):
    return   x
'''.lstrip()
    text, done = placed(
        source, "x * mx.rsqrt(v + eps) * w", RMS, {"x": "param:x", "w": "param:w", "eps": "param:eps"}, function="norm"
    )
    assert isinstance(done, Placement), done
    assert text == source.replace("    v = mx.mean(x * x, -1, keepdims=True)\n", "").replace(
        "x * mx.rsqrt(v + eps) * w", "mx.fast.rms_norm(x, w, eps)"
    )


class TestHelpers:
    CLASS = """
        class Norm(nn.Module):
            def __init__(self, dims):
                super().__init__()
                self.weight = mx.ones((dims,))
                self.eps = 1e-5

            def _norm(self, x):
                return x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + self.eps)

            def __call__(self, x):
                return self.weight * self._norm(x)
        """

    def test_a_private_method_that_nothing_reads_goes(self) -> None:
        becomes(
            self.CLASS,
            """
            class Norm(nn.Module):
                def __init__(self, dims):
                    super().__init__()
                    self.weight = mx.ones((dims,))
                    self.eps = 1e-5

                def __call__(self, x):
                    return mx.fast.rms_norm(x, self.weight, self.eps)
            """,
            "self.weight * self._norm(x)",
            x="param:x",
            w="self.weight",
            eps="attr:self.eps",
            function="Norm.__call__",
        )

    def test_another_file_reads_it(self) -> None:
        text, done = placed(
            self.CLASS,
            "self.weight * self._norm(x)",
            RMS,
            {"x": "param:x", "w": "self.weight", "eps": "attr:self.eps"},
            function="Norm.__call__",
            is_read=lambda name: name == "_norm",
        )
        assert isinstance(done, Placement) and "def _norm" in text

    def test_the_file_reads_it_elsewhere(self) -> None:
        text, done = placed(
            self.CLASS + "\n        def other(norm, x):\n            return getattr(norm, '_norm')(x)\n",
            "self.weight * self._norm(x)",
            RMS,
            {"x": "param:x", "w": "self.weight", "eps": "attr:self.eps"},
            function="Norm.__call__",
        )
        assert isinstance(done, Placement) and "def _norm" in text

    def test_a_root_deep_inside_a_helper_belongs_to_the_helper(self) -> None:
        stays(
            """
            def inner(x, w, eps):
                return mx.exp(x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w)

            def outer(x, w, eps):
                return inner(x, w, eps)
            """,
            "lies inside `inner`",
            "op:multiply",
            x="param:x",
            w="param:w",
            eps="param:eps",
        )

    def test_comments_of_a_deleted_helper_move(self) -> None:
        text, done = placed(
            self.CLASS.replace(
                "                return x * mx.rsqrt",
                "                # in the dtype of x\n                return x * mx.rsqrt",
            ),
            "self.weight * self._norm(x)",
            RMS,
            {"x": "param:x", "w": "self.weight", "eps": "attr:self.eps"},
            function="Norm.__call__",
        )
        assert isinstance(done, Placement), done
        assert "        # in the dtype of x\n        return mx.fast.rms_norm(x, self.weight, self.eps)\n" in text


class TestRepeats:
    SOURCE = """
        class Attention(nn.Module):
            def __init__(self, heads, kv):
                super().__init__()
                self.heads = heads
                self.repeats = heads // kv

            def __call__(self, k, v):
                def repeat(a):
                    return mx.repeat(a, self.repeats, axis=1)

                if self.repeats > 1:
                    k, v = map(repeat, (k, v))

                return k @ v
        """

    def test_nothing_is_left_of_a_repeat(self) -> None:
        becomes(
            self.SOURCE,
            """
            class Attention(nn.Module):
                def __init__(self, heads, kv):
                    super().__init__()
                    self.heads = heads

                def __call__(self, k, v):
                    return k @ v
            """,
            ("op:repeat", "first:repeat"),
            ("{v}", "{k}"),
            k="param:k",
            v="param:v",
            cap="unsafe",
            function="Attention.__call__",
        )

    def test_a_public_attribute_stays_in_a_safe_fix(self) -> None:
        text, done = placed(
            self.SOURCE,
            ("op:repeat", "first:repeat"),
            ("{v}", "{k}"),
            {"k": "param:k", "v": "param:v"},
            function="Attention.__call__",
        )
        assert isinstance(done, Placement), done
        assert "self.repeats = heads // kv" in text and "def repeat" not in text

    def test_one_of_two_goes(self) -> None:
        becomes(
            """
            def f(k, v, n):
                k, v = mx.repeat(k, n, axis=1), mx.tile(v, n)
                return k @ v
            """,
            """
            def f(k, v, n):
                v = mx.tile(v, n)
                return k @ v
            """,
            "mx.repeat(k, n, axis=1)",
            "{k}",
            k="param:k",
        )


class TestModules:
    def test_the_files_own_alias(self) -> None:
        text, done = placed(
            "import mlx.core as T\n\n\ndef f(x, w):\n    return T.exp(x) * w\n",
            "T.exp(x) * w",
            "{mx}.fast.g({x}, {w})",
            {"x": "param:x", "w": "param:w"},
        )
        assert isinstance(done, Placement), done
        assert "return T.fast.g(x, w)" in text

    def test_nn_is_imported_where_it_is_missing(self) -> None:
        text, done = placed(
            "import mlx.core as mx\nimport numpy as np\n\n\ndef f(x):\n    return x * mx.sigmoid(x)\n",
            "x * mx.sigmoid(x)",
            "{nn}.silu({x})",
            {"x": "param:x"},
        )
        assert isinstance(done, Placement), done
        assert text == (
            "import mlx.core as mx\nimport mlx.nn as nn\nimport numpy as np\n\n\ndef f(x):\n    return nn.silu(x)\n"
        )

    def test_a_shadowed_name_is_refused(self) -> None:
        _, done = placed(
            "import mlx.core as mx\n\n\ndef f(x, nn):\n    return x * mx.sigmoid(x)\n",
            "x * mx.sigmoid(x)",
            "{nn}.silu({x})",
            {"x": "param:x"},
        )
        assert isinstance(done, NoFix) and "nn" in done.reason

    def test_an_import_inside_the_function(self) -> None:
        text, done = placed(
            "import os\n\n\ndef f(x):\n    import mlx.core as mx\n\n    return x * mx.sigmoid(x)\n",
            "x * mx.sigmoid(x)",
            "{mx}.fast.silu({x})",
            {"x": "param:x"},
        )
        assert isinstance(done, Placement), done
        assert text.endswith("    import mlx.core as mx\n\n    return mx.fast.silu(x)\n")


SWIGLU = HoistedHelper("swiglu", ("gate", "up"), "{nn}.silu(gate) * up", shapeless=True)


class TestHoistedHelpers:
    SOURCE = """
        # The model's MLP
        class MLP(nn.Module):
            def __call__(self, x):
                return self.down(nn.silu(self.gate(x)) * self.up(x))
        """

    def fixed(self, source: str, helper: HoistedHelper = SWIGLU) -> tuple[str, Placement | NoFix]:
        return placed(
            source,
            "nn.silu(self.gate(x)) * self.up(x)",
            "{helper}({g}, {u})",
            {"g": "self.gate(x)", "u": "self.up(x)"},
            helper=helper,
            function="MLP.__call__",
        )

    def test_a_helper_above_the_class(self) -> None:
        text, done = self.fixed(self.SOURCE)
        assert isinstance(done, Placement), done
        assert text == (
            "from functools import partial\n"
            "\n"
            "import mlx.core as mx\n"
            "import mlx.nn as nn\n"
            "\n"
            "\n"
            "@partial(mx.compile, shapeless=True)\n"
            "def swiglu(gate: mx.array, up: mx.array) -> mx.array:\n"
            "    return nn.silu(gate) * up\n"
            "\n"
            "\n"
            "# The model's MLP\n"
            "class MLP(nn.Module):\n"
            "    def __call__(self, x):\n"
            "        return self.down(swiglu(self.gate(x), self.up(x)))\n"
        )

    def test_a_helper_of_the_module_is_used_again(self) -> None:
        helper = "@partial(mx.compile, shapeless=True)\ndef glu(x, g):\n    return nn.silu(g) * x\n\n\n"
        source = (
            "from functools import partial\n\n"
            + HEAD
            + helper
            + (
                "class MLP(nn.Module):\n"
                "    def __init__(self, d):\n"
                "        self.gate, self.up = nn.Linear(d, d), nn.Linear(d, d)\n\n"
                "    def __call__(self, x):\n"
                "        return nn.silu(self.gate(x)) * self.up(x)\n"
            )
        )
        text, done = self.fixed(source)
        assert isinstance(done, Placement), done
        assert text == source.replace("nn.silu(self.gate(x)) * self.up(x)", "glu(self.up(x), self.gate(x))")

    def test_a_name_that_is_taken(self) -> None:
        text, done = self.fixed(self.SOURCE + "\n        def swiglu():\n            pass\n")
        assert isinstance(done, Placement), done
        assert "fused_swiglu(self.gate(x), self.up(x))" in text

    def test_statements_of_a_helper(self) -> None:
        helper = HoistedHelper("g", ("gate", "up"), "t * up + t", statements=("t = {nn}.silu(gate)",))
        text, done = self.fixed(self.SOURCE, helper)
        assert isinstance(done, Placement), done
        assert "@mx.compile\ndef g(gate: mx.array, up: mx.array) -> mx.array:\n    t = nn.silu(gate)\n" in text
        assert "    return t * up + t\n" in text

    def test_no_module_level_alias(self) -> None:
        _, done = placed(
            "def f(x, g):\n    import mlx.core as mx\n\n    return mx.exp(x) * g\n".replace(
                "def", "import os\n\n\ndef", 1
            ),
            "mx.exp(x) * g",
            "{helper}({x}, {g})",
            {"x": "param:x", "g": "param:g"},
            helper=HoistedHelper("f2", ("x", "g"), "{mx}.exp(x) * g"),
        )
        assert isinstance(done, NoFix) and "mlx.core" in done.reason


class TestEdits:
    def test_apply(self) -> None:
        assert apply("abcdef", [Edit(4, 5, "E"), Edit(0, 1, ""), Edit(2, 2, "++")]) == "b++cdEf"

    def test_overlapping_edits_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="overlaps"):
            apply("abcdef", [Edit(0, 3, ""), Edit(2, 4, "")])

    def test_compatible(self) -> None:
        a = [Edit(0, 3, "x")]
        assert compatible(a, [Edit(4, 5, "")])
        assert not compatible(a, [Edit(3, 5, "")]), "touching counts as overlapping"
        assert compatible([Edit(0, 0, "import"), *[Edit(5, 6, "")]], [Edit(0, 0, "import"), Edit(8, 9, "")])
        assert not compatible([Edit(0, 0, "import a")], [Edit(0, 0, "import b")])

    def test_helpers_at_one_place_are_compatible(self) -> None:
        def helper(name: str, body: str, at: int = 7) -> Edit:
            return Edit(at, at, f"\n@mx.compile\ndef {name}(x):\n    return {body}\n\n\n")

        first, second, third = helper("f", "x + 1"), helper("g", "x + 2"), helper("h", "x + 3")
        use = [Edit(20 + i, 21 + i, "f(x)") for i in (0, 5, 10)]
        a, b, c = [first, use[0]], [second, use[1]], [third, use[2]]
        assert compatible(a, b) and compatible(merge(a, b), c)
        assert compatible(merge(a, b), [first, use[2]]), "the same helper counts once"
        assert not compatible(a, [helper("f", "x + 2"), use[1]]), "one name"
        assert not compatible(a, [helper("g", "x + 1"), use[1]]), "one computation"
        assert not compatible(a, [Edit(7, 7, "import os\n")]), "no helper"
        assert not compatible(a, [Edit(7, 8, second.text)]), "no insertion"
        assert not compatible(a, [helper("g", "x + 2", at=20)])
        assert not compatible(a, [second, Edit(30, 30, "f = x\n")]), "a local name would hide the helper"
        assert compatible(a, [second, Edit(30, 30, "self.f = x\n")])

    def test_helpers_at_one_place_stand_two_blank_lines_apart(self) -> None:
        one, two = (Edit(2, 2, f"\n@c\ndef {n}(x):\n    return {n}1\n\n\n") for n in "fg")
        made = joined(merge([two, Edit(3, 3, "!")], [one, Edit(0, 1, "?")]))
        assert [e.start for e in made] == [0, 2, 3]
        assert made[1].text == "\n@c\ndef g(x):\n    return g1\n\n\n@c\ndef f(x):\n    return f1\n\n\n"

    def test_merge_takes_a_shared_edit_once(self) -> None:
        a, b = [Edit(0, 0, "i"), Edit(5, 6, "")], [Edit(0, 0, "i"), Edit(8, 9, "")]
        assert apply("0123456789", merge(a, b)) == "i012346789"[:1] + "01234" + "67" + "9"


def test_a_choice_inside_a_helper_is_made_at_the_call() -> None:
    becomes(
        """
        class Scaled:
            def __init__(self, n: int):
                self.near = mx.arange(n)
                self.far = mx.arange(n) * 2
                self.limit_of_the_positions_that_are_near = n

            def _table(self, at, length):
                chosen = self.far if at + length > self.limit_of_the_positions_that_are_near else self.near
                return mx.exp(chosen) * 2

            def __call__(self, x, offset: int):
                return x * self._table(offset, x.shape[1])
        """,
        """
        class Scaled:
            def __init__(self, n: int):
                self.near = mx.arange(n)
                self.far = mx.arange(n) * 2
                self.limit_of_the_positions_that_are_near = n

            def __call__(self, x, offset: int):
                return mx.fast.scaled(
                    x,
                    1.0
                    / (
                        self.far
                        if offset + x.shape[1] > self.limit_of_the_positions_that_are_near
                        else self.near
                    ),
                )
        """,
        "x * self._table(offset, x.shape[1])",
        "{mx}.fast.scaled({x}, 1.0 / {table})",
        x="param:x",
        table="op:phi",
        function="Scaled.__call__",
    )


def test_a_number_of_a_helper_needs_no_parentheses_beside_an_operator() -> None:
    becomes(
        """
        def _half(x, n: int):
            size = n * 0.5 + 2
            return mx.exp(x) * size

        def f(x, n: int):
            return _half(x, n)
        """,
        """
        def f(x, n: int):
            return mx.fast.half(x, (n * 0.5) + 2)
        """,
        "_half(x, n)",
        "{mx}.fast.half({x}, {size})",
        x="param:x",
        size="op:add",
        function="f",
    )


def test_a_long_line_is_looked_at_once() -> None:
    """A pattern that began anew at each of its characters took seconds beside a number of 10,000 digits."""
    begun = time.process_time()
    assert normalised("x = 1\n", [Edit(0, 5, "1" * 1_000_000)]) == (Edit(0, 5, "1" * 1_000_000),)
    assert time.process_time() - begun < 5
