"""How new code is laid out: on one line where it fits, else broken as black breaks a call."""

from __future__ import annotations

import ast
import io
import itertools
import keyword
import re
import tokenize
from dataclasses import dataclass

BLACK = 88
"""Columns of a line, unless the file is written wider."""

_OPEN, _CLOSE = "([{", ")]}"


def width_of(text: str) -> int:
    """The line length that a file is written to: 88, or 100 or 120 where lines are longer.

    Comments and strings count for nothing: nobody breaks them. One longer line does for a file in which nothing
    shorter was broken; else it may have slipped in, and it takes three.
    """
    lines = [line.partition("#")[0].rstrip() for line in text.split("\n")]
    lengths = sorted((len(line) for line in lines if '"' not in line and "'" not in line), reverse=True)
    widest = lengths[0] if lengths and lengths[0] < _shortest_broken(lines) else lengths[2] if len(lengths) > 2 else 0
    return next((w for w in (BLACK, 100) if widest <= w), 120)


def _shortest_broken(lines: list[str]) -> float:
    """The length that the shortest of the calls which are broken over three lines would have on one."""
    return min(
        (
            len(head) + len(body.strip()) + len(tail.strip())
            for head, body, tail in zip(lines, lines[1:], lines[2:], strict=False)
            if head.endswith(tuple(_OPEN))
            and not body.endswith((",", *_OPEN))
            and tail.lstrip().startswith(tuple(_CLOSE))
        ),
        default=float("inf"),
    )


def one_line(text: str) -> str | None:
    """An expression's text without its line breaks, or None where that can't be: a comment, a multi-line string."""
    if "\n" not in text and "\r" not in text:
        return text
    out: list[str] = []
    end, broken = (1, 0), False
    try:
        for t in tokenize.generate_tokens(io.StringIO(f"({text})").readline):
            if t.type in (tokenize.NL, tokenize.NEWLINE):
                broken = True
            elif t.type == tokenize.COMMENT or (t.start[0] != t.end[0]):
                return None
            elif t.type not in (tokenize.ENDMARKER, tokenize.INDENT, tokenize.DEDENT):
                gap = " " if broken or t.start[0] != end[0] else " " * (t.start[1] - end[1])
                if broken or t.start[0] != end[0]:
                    if out and out[-1] == "," and t.string in ")]}":
                        if not _lone(out):
                            out.pop()
                        gap = ""
                    elif (out and out[-1] in _OPEN) or t.string in _CLOSE:
                        gap = ""
                out += [gap, t.string] if gap else [t.string]
                end, broken = t.end, False
    except (tokenize.TokenError, SyntaxError):
        return None
    joined = "".join(out)[1:-1].strip()
    try:
        same = ast.dump(ast.parse(joined, mode="eval")) == ast.dump(ast.parse(f"({text})", mode="eval"))
    except SyntaxError:
        return None
    return joined if same else None


def _lone(tokens: list[str]) -> bool:
    """Whether the comma that ends `tokens` is the only one of its brackets: it may make a tuple."""
    depth = 0
    for t in reversed(tokens[:-1]):
        if t in _CLOSE:
            depth += 1
        elif t in _OPEN:
            if depth == 0:
                return True
            depth -= 1
        elif t == "," and depth == 0:
            return False
    return True


def is_atom(text: str) -> bool:
    """Whether an expression binds at least as tightly as a call, so that it never needs parentheses."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return False
    if isinstance(node, (ast.Tuple, ast.GeneratorExp)):
        return text.strip().startswith("(")
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, (int, float, complex)) or node.value is True or node.value is False
    return isinstance(
        node,
        (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp),
    )


def delimited(before: str, after: str) -> bool:
    """Whether a place in a template, given the text around it, is an argument or element of its own."""
    b, a = before.rstrip(), after.lstrip()
    starts = not b or b[-1] in "([{," or (b[-1] == "=" and not re.search(r"[=!<>]=$", b))
    return starts and (not a or a[0] in ")]},")


@dataclass(frozen=True)
class Brackets:
    """A bracket pair of an expression: offsets of the brackets, and its comma-separated parts.

    closed: whether a comma behind the last part would change the meaning: `(a + b)`, `x[i]`. tuple: of `(a,)`.
    """

    start: int
    end: int
    parts: tuple[str, ...]
    closed: bool = False
    tuple: bool = False


def brackets(text: str) -> list[Brackets]:
    """The outermost non-empty bracket pairs of a one-line expression."""
    out: list[Brackets] = []
    depth, start = 0, 0
    cuts: list[int] = []
    kind, behind, called = (
        "",
        "",
        False,
    )  # behind: the token before the bracket, and whether the bracket calls or indexes it
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    for t in tokens:
        before, behind = behind, t.string
        if t.type != tokenize.OP:
            continue
        if t.string in _OPEN:
            depth += 1
            if depth == 1:
                start, cuts = t.start[1], []
                called = before in (")", "]", "}") or (before.isidentifier() and not keyword.iskeyword(before))
                kind = t.string
        elif t.string in _CLOSE:
            depth -= 1
            if depth == 0:
                at = [start, *cuts, t.start[1]]
                parts = tuple(p for a, b in itertools.pairwise(at) if (p := text[a + 1 : b].strip()))
                if parts:
                    closed = not cuts and (kind == "(") != called and kind != "{"
                    out.append(Brackets(start, t.start[1], parts, closed, bool(cuts) and kind == "(" and not called))
        elif t.string == "," and depth == 1:
            cuts.append(t.start[1])
    return out


def chain(text: str) -> list[str]:
    """A call and the method calls on its result, one by one: `f(x).g()` is `f(x)` and `.g()`."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return [text]
    cuts = [len(text)]
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        node = node.func.value
        cuts.append(len(text.encode()[: node.end_col_offset].decode()))
    at = [0, *reversed(cuts)]
    return [text[a:b] for a, b in itertools.pairwise(at)]


def fit(before: str, text: str, after: str, indent: str, unit: str, width: int, newline: str) -> str:
    """`text` broken so that the line `before + text + after` keeps to the width, where it can be.

    before, after: the rest of the first and last line. indent: of the statement. Only the longest bracket pair of the
    text is broken: its parts go on one indented line, or else each on its own with a trailing comma.
    """
    if "\n" in text or "\r" in text or len((before + text + after).expandtabs(4)) <= width:
        return text
    if choice := _choice(text, "", indent + unit, unit, width, newline):
        return newline.join(["(", indent + unit + choice, indent + ")"])
    pairs = brackets(text)
    if not pairs:
        return text
    pair = _to_break(text, pairs, width - len(before.expandtabs(4)))
    head, tail, inner = text[: pair.start + 1], text[pair.end :], indent + unit
    together = ", ".join(pair.parts)
    if len((inner + together).expandtabs(4)) <= width:
        return newline.join([head, inner + together, indent + tail])
    comma = "," if len(pair.parts) > 1 or pair.tuple or before == "def " else ""
    lines = [inner + _element(p, comma, inner, unit, width, newline) + comma for p in pair.parts]
    return newline.join([head, *lines, indent + tail])


def _to_break(text: str, pairs: list[Brackets], room: int) -> Brackets:
    """Of `f(x).g(y)[i]` the last pair up to which the text fits on its line; the longest pair of anything else."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        tree = None
    ends = [p for p in pairs if p.start < room] if isinstance(tree, (ast.Call, ast.Subscript)) else []
    return ends[-1] if ends else max(pairs, key=lambda p: p.end - p.start)


def terms(value: str) -> list[str]:
    """A formula cut before its outermost operators of the lowest precedence."""
    try:
        tree = ast.parse(value, mode="eval").body
    except SyntaxError:  # an argument with its name, a part of a formula
        return [value]
    if tree.col_offset:  # all of it stands in parentheses
        return [value]
    cuts: list[int] = []
    node = tree
    kinds = (
        (ast.Add, ast.Sub)
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub))
        else (ast.Mult, ast.Div)
    )
    while isinstance(node, ast.BinOp) and isinstance(node.op, kinds):
        assert node.left.end_col_offset is not None
        gap = re.compile(r"[\s)]*").match(value, node.left.end_col_offset)
        cuts.append(gap.end() if gap else node.left.end_col_offset)
        node = node.left
    at = [0, *sorted(cuts), len(value)]
    return [value[a:b].strip() for a, b in itertools.pairwise(at) if value[a:b].strip()]


def _element(text: str, after: str, indent: str, unit: str, width: int, newline: str) -> str:
    """As `fit`, inside brackets: a choice and the terms of a formula may go on lines of their own."""
    if len((indent + text + after).expandtabs(4)) <= width:
        return text
    if choice := _choice(text, after, indent, unit, width, newline):
        return choice
    cut = [indent + line for line in lines(text, after, indent, unit, width, newline)]
    return newline.join(cut).removeprefix(indent)


def lines(text: str, after: str, indent: str, unit: str, width: int, newline: str) -> list[str]:
    """A formula cut before its operators, those of the lowest precedence first, as far as it is too long."""
    sign, formula = (m[1], m[2]) if (m := re.match(r"([-+*/]\s)(.*)", text)) else ("", text)
    cut = terms(formula)
    if len(cut) == 1 or len((indent + text + after).expandtabs(4)) <= width:
        return [fit(indent, text, after, indent, unit, width, newline)]
    cut[0] = sign + cut[0]
    return [line for term in cut for line in lines(term, after, indent, unit, width, newline)]


def _choice(text: str, after: str, indent: str, unit: str, width: int, newline: str) -> str:
    """`a if b else c` on three lines, the first one's indent left out; "" for any other expression."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ""
    if not isinstance(tree, ast.IfExp):
        return ""
    pieces = (ast.get_source_segment(text, n) or "" for n in (tree.body, tree.test, tree.orelse))
    lines = [f"{word}{piece}" for word, piece in zip(("", "if ", "else "), pieces, strict=True)]
    done = newline.join(indent + fit(indent, line, after, indent, unit, width, newline) for line in lines)
    return done.removeprefix(indent)
