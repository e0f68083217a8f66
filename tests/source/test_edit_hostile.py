"""Placement in code that nobody would write, and in code that somebody did."""

from __future__ import annotations

import pytest
from source.placing import HEAD, RMS, becomes, placed, stays

from fuselint.rulebook import HoistedHelper, NoFix
from fuselint.source.edit import Placement

HOLES = {"x": "param:x", "w": "param:w", "eps": "param:eps"}
WHOLE = "x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w"


def test_a_backslash_continues_a_line() -> None:
    becomes(
        """
        def f(x, w, eps):
            v = \\
                mx.mean(x * x, -1, keepdims=True)
            return x * mx.rsqrt(v + eps) \\
                * w
        """,
        """
        def f(x, w, eps):
            return mx.fast.rms_norm(x, w, eps)
        """,
        "x * mx.rsqrt(v + eps) \\ * w",
        **HOLES,
    )


def test_an_annotated_assignment() -> None:
    becomes(
        """
        def f(x, w, eps):
            v: mx.array = mx.mean(x * x, -1, keepdims=True)
            y: mx.array = x * mx.rsqrt(v + eps) * w
            return y
        """,
        """
        def f(x, w, eps):
            y: mx.array = mx.fast.rms_norm(x, w, eps)
            return y
        """,
        "x * mx.rsqrt(v + eps) * w",
        **HOLES,
    )


def test_in_the_test_of_an_elif() -> None:
    becomes(
        f"""
        def f(x, w, eps):
            if w is None:
                return x
            elif mx.any({WHOLE}):
                return w
            return x
        """,
        """
        def f(x, w, eps):
            if w is None:
                return x
            elif mx.any(mx.fast.rms_norm(x, w, eps)):
                return w
            return x
        """,
        WHOLE,
        **HOLES,
    )


def test_in_the_test_of_a_while() -> None:
    becomes(
        """
        def f(x, w, eps):
            while mx.any(x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w):
                # turn
                x = x - 1
            return x
        """,
        """
        def f(x, w, eps):
            while mx.any(mx.fast.rms_norm(x, w, eps)):
                # turn
                x = x - 1
            return x
        """,
        WHOLE,
        x="x~1",
        w="param:w",
        eps="param:eps",
    )


def test_a_nested_function() -> None:
    becomes(
        f"""
        def outer(w, eps):
            def f(x):
                y = {WHOLE}
                return y

            return f
        """,
        """
        def outer(w, eps):
            def f(x):
                y = mx.fast.rms_norm(x, w, eps)
                return y

            return f
        """,
        WHOLE,
        x="param:x",
        w="w",
        eps="eps",
        function="outer.<locals>.f",
    )


def test_a_coroutine_and_a_generator() -> None:
    becomes(
        f"""
        async def f(x, w, eps, queue):
            y = {WHOLE}
            await queue.put(y)
            yield y
        """,
        """
        async def f(x, w, eps, queue):
            y = mx.fast.rms_norm(x, w, eps)
            await queue.put(y)
            yield y
        """,
        WHOLE,
        **HOLES,
    )


def test_an_operand_does_not_move_past_an_await() -> None:
    text, done = placed(
        """
        async def f(x, self, queue):
            y = nn.silu(self.gate)
            await queue.put(x)
            return y * x
        """,
        "y * x",
        "{mx}.fast.gate({g}, {x})",
        {"g": "self.gate", "x": "param:x"},
    )
    assert isinstance(done, NoFix) or "y = self.gate\n    await queue.put(x)" in text


def test_an_operand_does_not_move_into_a_branch_or_a_loop() -> None:
    for inner in ("if flag:", "for i in range(3):", "while flag:"):
        text, done = placed(
            f"""
            def f(x, flag, g):
                y = nn.silu(g(x))
                {inner}
                    x = y * x
                return x
            """,
            "y * x",
            "{mx}.fast.gate({g}, {x})",
            {"g": "g(x)", "x": "x~2"},
        )
        assert isinstance(done, NoFix) or f"y = g(x)\n    {inner}\n" in text, (inner, text, done)


def test_an_operand_does_not_move_under_a_condition_of_its_statement() -> None:
    for expr in ("y * x if flag else x", "flag and y * x", "[y * x for i in range(3)]"):
        text, done = placed(
            f"""
            def f(x, flag, g):
                y = nn.silu(g(x))
                return {expr}
            """,
            "y * x",
            "{mx}.fast.gate({g}, {x})",
            {"g": "g(x)", "x": "param:x"},
        )
        assert isinstance(done, NoFix) or "y = g(x)\n" in text, (expr, text)


def test_an_operand_does_not_move_past_a_return() -> None:
    becomes(
        """
        def f(x, flag, g):
            y = nn.silu(g(x))
            if flag:
                return x
            return y * x
        """,
        """
        def f(x, flag, g):
            y = g(x)
            if flag:
                return x
            return mx.fast.gate(y, x)
        """,
        "y * x",
        "{mx}.fast.gate({g}, {x})",
        g="g(x)",
        x="param:x",
    )


def test_code_in_a_lambda_is_left_alone() -> None:
    _, done = placed(
        "f = lambda x, w, eps: x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps) * w\n",
        WHOLE,
        RMS,
        HOLES,
    )
    assert isinstance(done, NoFix) and "lambda" in done.reason


def test_mx_is_something_else_in_a_comprehension() -> None:
    _, done = placed(
        """
        def f(xs):
            return [nn.silu(x) * x for x, mx in xs]
        """,
        "nn.silu(x) * x",
        "{mx}.fast.g({x})",
        {"x": "x~1"},
    )
    assert isinstance(done, NoFix)


def test_an_argument_named_like_the_module() -> None:
    _, done = placed(
        """
        def f(x, mx):
            return nn.silu(x) * x
        """,
        "nn.silu(x) * x",
        "{mx}.fast.g({x})",
        {"x": "param:x"},
    )
    assert isinstance(done, NoFix) and "mlx.core" in done.reason


def test_form_feeds_and_trailing_white_space() -> None:
    source = HEAD + (
        "\f\ndef f(x, w, eps):   \n    v = mx.mean(x * x, -1, keepdims=True)  \n\n"
        "    return x * mx.rsqrt(v + eps) * w\n"
    )
    text, done = placed(source, "x * mx.rsqrt(v + eps) * w", RMS, HOLES)
    assert isinstance(done, Placement), done
    assert text == HEAD + "\f\ndef f(x, w, eps):   \n    return mx.fast.rms_norm(x, w, eps)\n"


def test_no_newline_at_the_end() -> None:
    source = HEAD + "def f(x, w, eps):\n    v = mx.mean(x * x, -1, keepdims=True)\n    return x * mx.rsqrt(v + eps) * w"
    text, done = placed(source, "x * mx.rsqrt(v + eps) * w", RMS, HOLES)
    assert isinstance(done, Placement), done
    assert text == HEAD + "def f(x, w, eps):\n    return mx.fast.rms_norm(x, w, eps)"


def test_two_calls_in_one_statement() -> None:
    becomes(
        """
        def f(x, y):
            return mx.exp(x) * 2, mx.exp(y) * 2
        """,
        """
        def f(x, y):
            return mx.fast.g(x), mx.fast.h(y)
        """,
        ("mx.exp(x) * 2", "mx.exp(y) * 2"),
        ("{mx}.fast.g({x})", "{mx}.fast.h({y})"),
        x="param:x",
        y="param:y",
    )


def test_parts_inside_one_another() -> None:
    stays(
        """
        def f(x, y):
            return mx.exp(mx.exp(x) * 2) * 2
        """,
        "inside one another",
        ("mx.exp(mx.exp(x) * 2) * 2", "mx.exp(x) * 2"),
        ("{mx}.fast.g({x})", "{mx}.fast.h({x})"),
        x="param:x",
    )


def test_a_value_that_joins_branches_has_no_place() -> None:
    stays(
        """
        def f(x, flag):
            if flag:
                y = x * 2
            else:
                y = x * 3
            return y
        """,
        "joins several branches",
        "op:phi",
        "{mx}.fast.g({x})",
        x="param:x",
    )


def test_a_conditional_expression_has_one() -> None:
    becomes(
        """
        def f(x, flag):
            return (x * 2 if flag else x * 3) + 1
        """,
        """
        def f(x, flag):
            return mx.fast.g(x, flag) + 1
        """,
        "op:phi",
        "{mx}.fast.g({x}, {flag})",
        x="param:x",
        flag="param:flag",
    )


def test_a_name_that_is_deleted() -> None:
    stays(
        """
        def f(x, w):
            y = x * w
            del w
            return mx.exp(y) * 2
        """,
        "",
        "mx.exp(y) * 2",
        "{mx}.fast.g({x}, {w})",
        x="param:x",
        w="param:w",
    )


def test_attributes_that_are_assigned_between() -> None:
    text, done = placed(
        """
        class A:
            def f(self, x):
                y = x * self.w
                self.w = x
                return mx.exp(y) * 2
        """,
        "mx.exp(y) * 2",
        "{mx}.fast.g({x}, {w})",
        {"x": "param:x", "w": "attr:self.w"},
        function="A.f",
    )
    assert isinstance(done, NoFix) or "y = self.w\n        self.w = x\n        return mx.fast.g(x, y)\n" in text


def test_attributes_that_an_unknown_call_may_change() -> None:
    text, done = placed(
        """
        class A:
            def f(self, x):
                y = x * self.w
                self.step()
                return mx.exp(y) * 2
        """,
        "mx.exp(y) * 2",
        "{mx}.fast.g({x}, {w})",
        {"x": "param:x", "w": "attr:self.w"},
        function="A.f",
    )
    assert isinstance(done, NoFix) or "y = self.w\n        self.step()\n        return mx.fast.g(x, y)\n" in text


def test_default_arguments_of_a_nested_function() -> None:
    """They are evaluated where it is defined, so that a deletion of what they read would be seen."""
    text, done = placed(
        """
        def f(x, w, eps):
            v = mx.mean(x * x, -1, keepdims=True)

            def g(a=v):
                return a

            return x * mx.rsqrt(v + eps) * w, g
        """,
        "x * mx.rsqrt(v + eps) * w",
        RMS,
        HOLES,
        function="f",
    )
    assert isinstance(done, Placement), done
    assert "v = mx.mean" in text


def test_star_arguments_and_keywords() -> None:
    becomes(
        """
        def f(*xs, w, **more):
            return mx.exp(xs[0]) * w
        """,
        """
        def f(*xs, w, **more):
            return mx.fast.g(xs[0], w)
        """,
        "mx.exp(xs[0]) * w",
        "{mx}.fast.g({x}, {w})",
        x="xs[0]",
        w="param:w",
    )


def test_a_helper_for_a_function_under_a_guard() -> None:
    source = (
        "try:\n    import mlx.core as mx\nexcept ImportError:\n    mx = None\n\n"
        "if mx is not None:\n\n    def f(x, g):\n        return mx.exp(x) * g\n"
    )
    _, done = placed(
        "import os\n\n" + source,
        "mx.exp(x) * g",
        "{helper}({x}, {g})",
        {"x": "param:x", "g": "param:g"},
        helper=HoistedHelper("gated", ("x", "g"), "{mx}.exp(x) * g"),
        function="f",
    )
    assert isinstance(done, NoFix), "mx may be None where the helper would be made"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_helper_keeps_the_files_line_endings(newline: str) -> None:
    source = (HEAD + "def f(x, g):\n    return mx.exp(x) * g\n").replace("\n", newline)
    text, done = placed(
        source,
        "mx.exp(x) * g",
        "{helper}({x}, {g})",
        {"x": "param:x", "g": "param:g"},
        helper=HoistedHelper("gated", ("x", "g"), "{mx}.exp(x) * g"),
        newline=newline,
    )
    assert isinstance(done, Placement), done
    assert text.count("\n") == text.count(newline)
    assert f"@mx.compile{newline}def gated(x: mx.array, g: mx.array) -> mx.array:{newline}" in text


def test_indentation_by_two_is_kept_in_helpers() -> None:
    text, done = placed(
        HEAD + "def f(x, g):\n  return mx.exp(x) * g\n",
        "mx.exp(x) * g",
        "{helper}({x}, {g})",
        {"x": "param:x", "g": "param:g"},
        helper=HoistedHelper("gated", ("x", "g"), "{mx}.exp(x) * g"),
    )
    assert isinstance(done, Placement), done
    assert "-> mx.array:\n  return mx.exp(x) * g\n" in text


class TestAnOperandInPlaceOfTheRoot:
    """`y = x.astype(...)` that becomes `y = x`: y was an array of its own."""

    def test_nobody_can_tell(self) -> None:
        becomes(
            """
            def f(x: mx.array):
                y = x.astype(mx.float32)
                return mx.exp(y)
            """,
            """
            def f(x: mx.array):
                y = x
                return mx.exp(y)
            """,
            "x.astype(mx.float32)",
            "{x}",
            x="param:x",
        )

    def test_it_is_changed_in_place(self) -> None:
        stays(
            """
            def f(x: mx.array):
                y = x.astype(mx.float32)
                y += 1
                return mx.exp(y)
            """,
            "changed in place",
            "x.astype(mx.float32)",
            "{x}",
            x="param:x",
        )

    def test_it_leaves_the_function(self) -> None:
        stays(
            """
            def f(x: mx.array):
                y = x.astype(mx.float32)
                return y, 1
            """,
            "leaves the function",
            "x.astype(mx.float32)",
            "{x}",
            x="param:x",
        )

    def test_it_is_kept_in_an_attribute(self) -> None:
        stays(
            """
            def f(self, x: mx.array):
                self.last = x.astype(mx.float32)
                return mx.exp(x)
            """,
            "leaves the function",
            "x.astype(mx.float32)",
            "{x}",
            x="param:x",
        )


def test_an_assignment_in_place_in_an_array_with_other_names_is_left_alone() -> None:
    stays(
        """
        def f(x: mx.array, n):
            y = x * 2
            z = y
            for i in range(n):
                y *= mx.maximum(x, z)
            return y, z
        """,
        "may have other names",
        "y *= mx.maximum(x, z)",
        "{mx}.fast.g({x})",
        x="param:x",
    )
