"""How new code is laid out: on one line where it fits, else broken as black breaks a call."""

from __future__ import annotations

import ast
import io
import itertools
import keyword
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass

BLACK = 88
"""Columns of a line, unless the file is written wider."""

LONGEST = 10_000
"""Characters of a value that is laid out: how long a formula Python's own parser takes differs by its version."""
DEEPEST = 30
"""Brackets in brackets that are broken."""

_OPEN, _CLOSE = "([{", ")]}"
_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_POWER = re.compile(rf"(?<![\w.)\]}}])({_NAME}|\d[\w.]*) \*\* (-?\d[\w.]*|{_NAME})(?![\w.(\[])")
_LONG_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\'', re.DOTALL)


def width_of(text: str) -> int:
    """The line length that a file is written to: 88, or 100 or 120 where lines are longer.

    Comments and strings count for nothing: nobody breaks them. One longer line does for a file in which nothing
    shorter was broken; else it may have slipped in, and it takes three.
    """
    lines = _code(text)
    lengths = sorted((len(line) for line in lines if '"' not in line and "'" not in line), reverse=True)
    widest = lengths[0] if lengths and lengths[0] < _shortest_broken(lines) else lengths[2] if len(lengths) > 2 else 0
    return next((w for w in (BLACK, 100) if widest <= w), 120)


def _code(text: str) -> list[str]:
    """The lines of a file without comments and the strings of several lines."""
    return [line.partition("#")[0].rstrip() for line in _LONG_STRING.sub('""', text).split("\n")]


def has_spaced_powers(text: str) -> bool:
    """Whether a file writes `x ** 2`, where formatters write `x**2`: numbers and dotted names are pulled together."""
    return any(" ** " in line and _POWER.search(line) for line in _code(text))


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
                    elif (out and out[-1] in _OPEN) or t.string in (*_CLOSE, "."):
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


def stays_broken(text: str) -> bool:
    """Whether a comma before a closing bracket keeps an expression on several lines, as it does for black and ruff."""
    return re.search(r",[ \t]*\r?\n\s*[)\]}]", text) is not None


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

    closed: whether a comma behind the last part would change the meaning: `(a + b)`, `x[i]`. display: of a list, a
    tuple, a dictionary with a comma in it.
    """

    start: int
    end: int
    parts: tuple[str, ...]
    closed: bool = False
    display: bool = False


_NAMES = {"for": "in", "lambda": ":"}


def brackets(text: str) -> list[Brackets]:
    """The outermost non-empty bracket pairs of a one-line expression."""
    out: list[Brackets] = []
    depth, start = 0, 0
    cuts: list[int] = []
    kind, behind, called = "", "", False
    """behind: the token before the bracket. called: whether the bracket calls or indexes it."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    names_until = ""
    """What ends the names of a `for` or a `lambda`, whose commas cut nothing."""
    for t in tokens:
        before, behind = behind, t.string
        if depth == 1 and t.string in _NAMES:
            names_until = _NAMES[t.string]
        elif depth == 1 and t.string == names_until:
            names_until = ""
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
                    out.append(Brackets(start, t.start[1], parts, closed, bool(cuts) and not called))
        elif t.string == "," and depth == 1 and not names_until:
            cuts.append(t.start[1])
    return out


def chain(text: str) -> list[str]:
    """A call, index or parenthesis and the attributes behind it: `f(x)[0].T.g()` is `f(x)[0]` and `.T.g()`."""
    tree = node = _parsed(text)
    cuts = [len(text)]
    while isinstance(node, (ast.Call, ast.Subscript, ast.Attribute)):
        if isinstance(node, ast.Attribute):
            node = node.value
            end = _index(text, node)
            if tree is not None and node.col_offset > tree.col_offset:  # it stands in parentheses
                cuts.append(text.index(".", end))
            elif isinstance(node, (ast.Call, ast.Subscript)):
                cuts.append(end)
        else:
            node = node.func if isinstance(node, ast.Call) else node.value
    at = [0, *reversed(cuts)]
    return [text[a:b] for a, b in itertools.pairwise(at)]


def is_expression(text: str) -> bool:
    """Whether a text is an expression, or an argument with its name."""
    return _parsed(text) is not None or _parsed(f"f({text})") is not None


def _parsed(text: str) -> ast.expr | None:
    """The expression that a text is by itself; None for a formula's part, an argument with its name."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        return None


def _is_bare_tuple(text: str) -> bool:
    """Whether a text is a tuple without parentheses."""
    if not isinstance(_parsed(text), ast.Tuple):
        return False
    pairs = brackets(text)
    return not pairs or (pairs[0].start, pairs[0].end) != (0, len(text) - 1)


def _index(text: str, node: ast.expr) -> int:
    """Where a node of a one-line text ends. A column counts bytes."""
    return len(text.encode()[: node.end_col_offset].decode())


@dataclass(frozen=True)
class Page:
    """What lines are written to: an indent more, columns, the end of a line; whether powers are written `x ** 2`."""

    unit: str
    width: int
    newline: str
    spaced: bool = False

    def fits(self, line: str) -> bool:
        return len(line.expandtabs(4)) <= self.width

    def value(self, before: str, text: str, after: str, indent: str) -> str:
        """A statement's value on one line, or else broken in its own brackets or in parentheses of its own.

        before, after: the rest of the first and last line. indent: of the statement. What is nested too deeply for any
        line to fit stays on one.
        """
        text = self.spelled(text)
        if self._stays(text) or self.fits(before + text + after):
            return text
        cut, pairs = pieces(text), brackets(text)
        if len(cut) == 1:
            return self._broken(text, before, after, indent)
        if (
            len(cut) == 2
            and pairs
            and not (_is_bare_tuple(text) and "=" in before)
            and not self._apart(text, cut, indent)
        ):
            done = self._broken(text, before, after, indent)
            if all(map(self.fits, (before + done + after).split(self.newline))):
                return done
        return self.parenthesised(text, indent)

    @staticmethod
    def _stays(text: str) -> bool:
        depth = itertools.accumulate((c in _OPEN) - (c in _CLOSE) for c in text)
        return len(text) > LONGEST or "\n" in text or "\r" in text or max(depth, default=0) > DEEPEST

    def spelled(self, text: str) -> str:
        return text if self.spaced else _POWER.sub(r"\1**\2", text)

    def parenthesised(self, text: str, indent: str) -> str:
        return self.newline.join(["(", *self.lines(text, "", indent + self.unit), indent + ")"])

    def _apart(self, text: str, cut: Sequence[str], indent: str) -> bool:
        """Whether two operands read better on lines of their own than with the last one's brackets broken."""
        if text.endswith("]"):
            return all(self.fits(indent + self.unit + piece) for piece in cut)
        return not text.endswith((")", "}")) and not text.startswith(tuple(_OPEN))

    def fit(self, before: str, text: str, after: str, indent: str) -> str:
        """As `value`, of code in the middle of an expression: nothing else on its lines is broken."""
        text = self.spelled(text)
        if self._stays(text) or self.fits(before + text + after):
            return text
        if isinstance(_parsed(text), ast.IfExp) and len(pieces(text)) > 1:
            return self.parenthesised(text, indent)
        return self._broken(text, before, after, indent)

    def _broken(self, text: str, before: str, after: str, indent: str) -> str:
        """A text with those of its bracket pairs broken that don't fit their line up to where the next one opens."""
        pairs = brackets(text)
        out, line, at = "", before, 0
        for pair, following in itertools.zip_longest(pairs, pairs[1:]):
            stop = following.start + 1 if following else len(text)
            if self.fits(line + text[at:stop] + ("" if following else after)):
                out, line, at = out + text[at:stop], line + text[at:stop], stop
            else:
                head = text[at : pair.start + 1]
                out += self.newline.join([head, *self._held(pair, indent + self.unit, before == "def "), indent])
                line, at = indent, pair.end
        return out + text[at:]

    def _held(self, pair: Brackets, indent: str, defines: bool) -> list[str]:
        """What a bracket pair holds, on one line, or else each of its parts on its own."""
        together = indent + ", ".join(pair.parts)
        if not pair.display and self.fits(together):
            return [together]
        comma = "," if len(pair.parts) > 1 or pair.display or defines else ""
        return [line for p in pair.parts for line in self.lines(p, comma, indent)]

    def lines(self, text: str, after: str, indent: str) -> list[str]:
        """The lines of an expression inside brackets: where it is too long, it is cut where it holds together least.

        That is: a tuple at its commas, a choice at its words, a formula before its operators, those of the lowest
        precedence first, calls of methods before their dots.
        """
        if self.fits(indent + text + after) and not _is_bare_tuple(text):
            return [indent + text + after]
        if m := re.match(r"(\w+\s*=)(?!=)(.*)", text):  # an argument with its name
            done = m[1] + self.value(indent + m[1] + "=", m[2], after, indent)
            return (indent + done + after).split(self.newline)
        sign, formula = (m[1], m[2]) if (m := re.match(r"((?:[-+*/@%]|//|if|else)\s)(.*)", text)) else ("", text)
        cut, commas = pieces(formula), "," if _is_bare_tuple(formula) else ""
        if len(cut) == 1:
            return (indent + sign + self.fit(indent + sign, formula, after, indent) + after).split(self.newline)
        cut[0] = sign + cut[0]
        tails = [commas] * (len(cut) - 1) + [commas or after]
        return [line for piece, tail in zip(cut, tails, strict=True) for line in self.lines(piece, tail, indent)]


_SUMS, _PRODUCTS = (ast.Add, ast.Sub), (ast.Mult, ast.Div, ast.MatMult, ast.FloorDiv, ast.Mod)


def pieces(text: str) -> list[str]:
    """An expression cut where it holds together least; the commas of a tuple are left out."""
    tree = _parsed(text)
    if tree is None:
        return _clauses(text) if isinstance(_parsed(f"[{text}]"), ast.ListComp) else [text]
    if tree.col_offset:  # all of it stands in parentheses
        return [text]
    if _is_bare_tuple(text):
        return list(brackets(f"({text})")[0].parts)
    if isinstance(tree, ast.IfExp):
        parts = (ast.get_source_segment(text, n) or "" for n in (tree.body, tree.test, tree.orelse))
        return [f"{word}{part}" for word, part in zip(("", "if ", "else "), parts, strict=True)]
    if isinstance(tree, ast.BinOp):
        return _terms(text, tree)
    calls = chain(text)
    return calls if len(calls) > 2 else [text]


def _clauses(text: str) -> list[str]:
    """What stands in the brackets of a comprehension, cut before each `for` and each of their `if`s."""
    cuts: list[int] = []
    depth, before = 0, None
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        depth += (t.string in _OPEN) - (t.string in _CLOSE)
        if not depth and (t.string == "for" or (t.string == "if" and cuts)):
            cuts.append(before.start[1] if before is not None and before.string == "async" else t.start[1])
        before = t
    return [text[a:b].strip() for a, b in itertools.pairwise([0, *cuts, len(text)])]


def _terms(text: str, tree: ast.BinOp) -> list[str]:
    """A formula cut before its outermost operators of the lowest precedence."""
    kinds = next((k for k in (_SUMS, _PRODUCTS) if isinstance(tree.op, k)), ())
    cuts: list[int] = []
    node: ast.expr = tree
    while isinstance(node, ast.BinOp) and isinstance(node.op, kinds):
        at = _index(text, node.left)
        gap = re.compile(r"[\s)]*").match(text, at)
        cuts.append(gap.end() if gap else at)
        if node.left.col_offset:  # it stands in parentheses
            break
        node = node.left
    ends = [0, *sorted(cuts), len(text)]
    return [text[a:b].strip() for a, b in itertools.pairwise(ends)]
