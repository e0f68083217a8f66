"""What a condition gives, as far as the values in it are known."""

from __future__ import annotations

import ast
from collections.abc import Callable

from fuselint.source.project import MISSING


def outcome(test: ast.expr, value: Callable[[ast.expr], object]) -> bool | None:
    """Whether a test holds; None where it isn't known. value: the constant that an expression is, or MISSING."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            known = outcome(test.operand, value)
            return None if known is None else not known
        case ast.BoolOp():
            found = [outcome(v, value) for v in test.values]
            decisive = isinstance(test.op, ast.Or)
            return decisive if decisive in found else None if None in found else not decisive
        case ast.Compare(ops=[op], comparators=[right]):
            sides = value(test.left), right.value if isinstance(right, ast.Constant) else value(right)
            if MISSING in sides or not isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
                return None
            return (sides[0] == sides[1]) is isinstance(op, (ast.Eq, ast.Is))
        case ast.Compare():
            return None
    known_value = value(test)
    return None if known_value is MISSING else bool(known_value)
