"""A placed fix as two runnable texts, for verification.

`before` is the function's own code from the operands to the result, cut out of its source: the statements that the
result needs, with each operand replaced by the name of an input. `after` is the replacement on the same inputs.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import libcst as cst

from fuselint.finding import Region, RegionInput
from fuselint.graph.model import Graph, Node, operands, region
from fuselint.graph.ops import TABLE
from fuselint.graph.symbols import Apply, Expr
from fuselint.rulebook import Match, Probe, Replacement, Synthesised
from fuselint.source.dead import names_bound
from fuselint.source.formula import Formula, NoText
from fuselint.source.function import FunctionSource, children, walk
from fuselint.source.project import MODULE
from fuselint.source.tree import Tree

LEAVES = frozenset({"param", "attr"})
WIDTHS = frozenset({"dims", "input_dims"})
"""How layers of mlx.nn call the size of their input's last axis."""
FLOATS = ("float32", "float16", "bfloat16")
KNOWN_MODULES = {"mx": "mlx.core", "nn": "mlx.nn", "math": "math", "partial": "functools.partial"}


MODULES = frozenset({"mlx.core", "mlx.nn", "math", *(f"mlx.core.{m}" for m in ("fast", "linalg", "random", "fft"))})


class NotRunnable(Exception):
    """Why a region can't be run by itself."""


def region_of(
    graph: Graph,
    match: Match,
    replacement: Replacement,
    templates: Mapping[Node, str],
    helper: str,
) -> Region:
    """templates: what stands for each root, with `{hole}` for operands and all else filled in.

    helper: the definition of the compiled helper that they call, or "".
    """
    try:
        work = _Cut(graph, match, replacement, templates)
        before, after = work.before(), work.after()
        if "super()" in before:
            raise NotRunnable("it calls a method of the class that this one derives from")
        support = work.support(before)
        inputs = work.inputs()
        inputs += work.idle(before, inputs)
        if match.probe is not None:
            inputs = work.probed(match.probe, inputs)
    except NotRunnable as why:
        return Region(match.code, (), "", "", not_verifiable=str(why))
    from fuselint.verify.reference import text_of

    names = dict(work.names)
    reference = text_of(graph, work.roots, names)
    if match.probe is not None:
        before, after, reference = f"{before}{match.probe.text}\n", f"{after}{match.probe.text}\n", None
    return Region(
        code=match.code,
        inputs=inputs,
        before=before,
        after=after,
        support_before=support,
        support_after=work.support(after, helper, match.data.get("observe") is not None),
        reference=reference,
        needs=replacement.needs,
        numerics=replacement.numerics or match.numerics,
    )


@dataclass
class _Cut:
    graph: Graph
    match: Match
    replacement: Replacement
    templates: Mapping[Node, str]
    names: dict[Node, str] = field(default_factory=dict)  # inputs by the value they stand for
    keys: dict[Node, str] = field(default_factory=dict)  # the holes' own names
    layers: dict[str, RegionInput] = field(default_factory=dict)  # of mlx.nn, by the name that the code calls
    symbols: dict[str, str] = field(default_factory=dict)  # plain names of sizes, by what facts call them

    def __post_init__(self) -> None:
        graph = self.graph
        self.source = graph.source
        self.tree = Tree(self.source)
        self.roots = [p.root for p in self.replacement.parts]
        observed = self.match.data.get("observe")
        if observed is not None:
            self.roots = [observed]
        if not self.replacement.holes:
            raise NotRunnable("what is replaced is read by another function")
        for key, hole in self.replacement.holes.items():
            if isinstance(hole, Synthesised):
                for name, node in hole.operands.items():
                    self.keys.setdefault(node, key if len(hole.operands) == 1 else f"{key}.{name}")
            else:
                self.keys[hole] = key
        self.cuts: set[Node] = set()
        self.cuts = self._side_inputs(self._region())
        self.dtypes: dict[Node, str] = self.match.data.get("dtypes", {})
        inside = self._region()
        self.inside = sorted(inside, key=lambda n: n.id)
        self.statements = {graph.statements[s.index].cst for n in self.inside if (s := n.top_stmt) is not None}
        self._functions()
        self._name_inputs()

    def _region(self) -> set[Node]:
        return {n for r in self.roots for n in region(r, {*self.keys, *self.cuts} - {r})}

    def _side_inputs(self, inside: set[Node]) -> set[Node]:
        """Values that do not depend on the operands: other arrays, dtypes and sizes. They are inputs too."""
        paths = {k.attrs["path"] for k in self.keys if k.op == "attr" and k.attrs["path"]}
        depends = {n for n in inside if n.op == "attr" and n.attrs["path"] in paths}  # an operand, read once more
        for n in sorted(inside, key=lambda n: n.id):
            if any(i in depends or i in self.keys for i in operands(n)):
                depends.add(n)
        out: set[Node] = set()
        made = self.match.data.get("made", frozenset())  # what the computation itself makes, of numbers
        for n in depends:
            for i in operands(n):
                if i in made or i in depends or i in self.keys:
                    continue
                if i.op in LEAVES or i.op in ("const", "global", "tuple", "list") or _is_of_numbers(i):
                    continue
                if i.op in ("dtype", "dim") or self.graph.facts.kind(i) == "array":
                    out.add(i)
        return out

    # Inputs

    def _name_inputs(self) -> None:
        """Each operand, parameter and attribute that the code reads gets one name."""
        taken = {n for s in self.statements for n in _bound_in(s)} | {"result", *KNOWN_MODULES}
        taken |= {f.name.value for f in self.nested}
        read = dict.fromkeys([*self._operands(), *sorted(self.cuts, key=lambda n: n.id)])
        read |= dict.fromkeys(n for n in self.inside if n.op in LEAVES)
        own = self.graph.source.node.params.params
        summary = self.graph.module.functions.get(self.source.qualname)
        bound = self.source.class_name is not None and (summary is None or summary.kind != "staticmethod")
        first = self.first = own[0].name.value if own and bound else None
        self.given: list[Node] = []
        for node in read:
            if node in self.dtypes:
                self.names[node] = self.dtypes[node]
                continue
            base = node.inputs[0] if node.op == "attr" else None
            if base is not None and base in read and base.attrs.get("name") != first and base not in self.keys:
                raise NotRunnable(f"it reads an attribute of `{base.attrs.get('name')}`")
            if node.op == "param" and node.attrs["name"] == first:
                continue
            alike = self._same_dtype(node) if node.op == "dtype" else None
            again = self.match.holes.get(self.match.data.get("aliases", {}).get(node, ""))
            if node.op == "item" and isinstance(again, Node) and again in self.names:
                self.names[node] = self.names[again]  # an entry that is read twice
            elif alike is not None:
                self.names[node] = f"{self.names[alike]}.dtype"
            else:
                self.names[node] = self._name(node, taken, first)
                self.given.append(node)

    def _same_dtype(self, node: Node) -> Node | None:
        """An operand that has the dtype of the array whose dtype is read, or has it where its weights do."""
        dtype, operands = self.graph.facts.dtype(node.inputs[0]), [n for n in self.keys if n in self.names]
        dtypes = {n: self.graph.facts.dtype(n) for n in operands}
        same = [n for n in operands if dtypes[n] == dtype]
        return next(iter(same or [n for n in operands if dtype and dtype < dtypes[n]]), None)

    def _operands(self) -> Iterator[Node]:
        inside = set(self.inside)
        for node in self.keys:
            if node in self.roots or any(node in operands(n) for n in inside) or self._in_template(node):
                yield node

    def _in_template(self, node: Node) -> bool:
        key = self.keys[node].partition(".")[0]
        return any(f"{{{key}}}" in t for t in self.templates.values())

    def _name(self, node: Node, taken: set[str], first: str | None) -> str:
        if node.op == "attr":
            path = node.attrs["path"]
            base = node.inputs[0]
            if path is None or base.op != "param" or base.attrs["name"] != first or "version" in node.attrs:
                if node not in self.keys:
                    raise NotRunnable(f"it reads the attribute `{node.attrs['name']}` of another object")
            else:
                return f"self.{node.attrs['name']}"
        other = next((n for n, bound in self.graph.bindings.items() if any(b.node is node for b in bound)), node.op)
        wished = node.attrs["name"] if node.op == "param" else self.keys.get(node, other).rpartition(".")[2]
        name, count = wished, 2
        while name in taken or not name.isidentifier():
            name, count = f"{wished}_in" if count == 2 else f"{wished}_in{count}", count + 1
        taken.add(name)
        return name

    def inputs(self) -> tuple[RegionInput, ...]:
        out: dict[str, RegionInput] = {}
        for node in self.given:
            name = self.names[node]
            out.setdefault(name, self._input(node, name))
        out |= {name: layer for name, layer in self.layers.items() if name not in out}
        lead = self._lead(out)
        return tuple(i if lead is None else replace(i, shape=_led(i.shape, lead)) for i in out.values())

    def _lead(self, inputs: Mapping[str, RegionInput]) -> tuple[str, ...] | None:
        """What "..." stands for where the code says it of one array: the others have the same leading axes."""
        for node in self.given:
            template, shape = inputs[self.names[node]].shape, self.graph.facts.shape(node)
            if template and template[0] == "..." and shape is not None and shape.lead is None:
                count = len(shape.dims) - len(template) + 1
                if count > 0:
                    return tuple(map(self._axis, shape.dims[:count]))
        return None

    def idle(self, text: str, inputs: tuple[RegionInput, ...]) -> tuple[RegionInput, ...]:
        """Names that the text hands to a helper which makes no use of them: any number will do."""
        known = {i.name.partition(".")[0] for i in inputs} | {n for s in self.statements for n in _bound_in(s)}
        idle = (_loads(text) - known - {self.first}) & set(self.graph.bindings)
        return tuple(RegionInput(n, "scalar") for n in sorted(idle))

    def _input(self, node: Node, name: str) -> RegionInput:
        facts, key = self.graph.facts, self.keys.get(node, "")
        kind, shapes = facts.kind(node), self.match.shapes
        if kind == "dtype" or any(n.op == "astype" and n.attrs["dtype"] is node for n in self.inside):
            return RegionInput(name, "dtype")
        if kind in ("function", "object", "str", "tuple"):
            raise NotRunnable(f"`{name}` is no array and no number")
        if not key and kind == "unknown" and self._may_be_none(node):
            return RegionInput(name, "none")
        scalar = kind == "scalar" or (kind == "unknown" and key not in shapes and bool(shapes))
        if scalar or kind == "none":
            const = facts.const(node)
            if isinstance(const, bool):
                return RegionInput(name, "bool", value=const)
            if const is None:
                return RegionInput(name, "none")
            known = isinstance(const, (int, float))
            size = self._size(node) if node.op == "dim" else None
            symbol = self._axis(size) if size is not None else None
            symbol = self.match.scalars.get(self.graph.canonical.of(node), symbol)
            return RegionInput(name, "scalar", value=const if known else None, symbol=symbol)
        shape = tuple(shapes[key]) if key in shapes else self._shape(node)
        dtype, said = self._dtype(node), self.match.dtypes.get(key, "")
        if said and (said != "weight" or dtype == "activation"):  # a weight may be cast where it is used
            dtype = said
        beside = self._beside(key)
        maybe = beside or self._may_be_none(node)
        return RegionInput(name, "none" if maybe else "array", shape, dtype, beside=beside)

    def _beside(self, key: str) -> str:
        """The name of the operand that one is None with, always."""
        other = self.match.holes.get(self.match.data.get("beside", {}).get(key, ""))
        return self.names.get(other, "") if isinstance(other, Node) else ""

    def probed(self, probe: Probe, inputs: tuple[RegionInput, ...]) -> tuple[RegionInput, ...]:
        """The inputs with the probe's own. Where those' shapes name a hole, it is the size of that axis."""
        if {i.name for i in inputs} & {p.name for p in probe.inputs}:
            raise NotRunnable("it has operands of the probe's names")
        axes = {a for p in probe.inputs for a in p.shape or ()}
        sized = {self.names[n]: key for n, key in self.keys.items() if key in axes and n in self.names}
        return (*(replace(i, symbol=sized.get(i.name, i.symbol)) for i in inputs), *probe.inputs)

    def _size(self, node: Node) -> Expr | None:
        shape = self.graph.facts.shape(node.inputs[0])
        axis = node.attrs["axis"]
        if shape is None or not isinstance(axis, int) or (shape.lead is not None and axis >= 0):
            return None
        return shape.dims[axis] if -len(shape.dims) <= axis < len(shape.dims) else None

    def _shape(self, node: Node) -> tuple[str, ...] | None:
        """A shape that the code says in full, of all arrays that it reads or of none: others have one common shape."""
        shapes = [self.graph.facts.shape(n) for n in self.given if self.graph.facts.kind(n) in ("array", "unknown")]
        if any(s is None or s.lead is not None for s in shapes):
            return None
        shape = self.graph.facts.shape(node)
        return None if shape is None else tuple(map(self._axis, shape.dims))

    def _axis(self, size: Expr) -> str:
        """A size as text over plain names."""
        terms = []
        for powers, c in size.terms:
            factors = [self._symbol(a) for a, e in powers for _ in range(e)]
            terms.append(" * ".join(factors if c == 1 and factors else [str(c), *factors]))
        return " + ".join(terms) or "0"

    def _symbol(self, atom: str | Apply) -> str:
        if isinstance(atom, Apply) and atom.function == "//":
            return f"(({self._axis(atom.args[0])}) // ({self._axis(atom.args[1])}))"
        text = str(atom)
        return self.symbols.setdefault(text, text if text.isidentifier() else f"size{len(self.symbols)}")

    def _dtype(self, node: Node) -> str:
        dtypes = self.graph.facts.dtype(node)
        if len(dtypes) == 1:
            one = str(next(iter(dtypes)))
            if one in (*FLOATS, "bool", "bool_") or one.startswith(("int", "uint")):
                return one
        return "weight" if node.op == "attr" else "activation"

    def _may_be_none(self, node: Node) -> bool:
        return any(
            n.op == "compare" and n.attrs.get("op") in ("is", "is not") and node in n.inputs for n in self.inside
        )

    # Definitions

    def _functions(self) -> None:
        """The helpers whose bodies are inlined in the region, and the nested functions among them."""
        self.helpers: dict[str, FunctionSource] = {}
        self.is_cut_in_a_helper = any(self._is_in_a_helper(k) for k in self.keys)
        nested: dict[str, None] = {}
        for n in () if self.is_cut_in_a_helper else self.inside:
            at = n.frame
            while at.parent is not None:
                if "<locals>" in at.qualname:
                    nested[at.qualname] = None
                elif at.source is not None:
                    self.helpers[at.qualname] = at.source
                at = at.parent
        self.nested: list[cst.FunctionDef] = []
        for s in self.graph.statements:
            if isinstance(s.cst, cst.FunctionDef) and any(
                q == f"{self.graph.context.qualname}.<locals>.{s.cst.name.value}" for q in nested
            ):
                self.nested.append(s.cst)
                self.statements.add(s.cst)
        for f in self.nested:  # it reads names of the function around it when it runs
            free = {n.value for n in walk(f.body) if isinstance(n, cst.Name)}
            for name in free & set(self.graph.bindings):
                for b in self.graph.bindings[name]:
                    if (
                        b.stmt is not None
                        and b.node in self.inside
                        and isinstance(b.stmt.cst, (cst.Assign, cst.AnnAssign))
                    ):
                        self.statements.add(b.stmt.cst)

    def support(self, text: str, helper: str = "", whole: bool = True) -> str:
        """The definitions that a text calls."""
        plain: list[str] = []
        methods: list[str] = []
        for source in self.helpers.values() if whole else ():
            definition = textwrap.dedent(self.source.file.text[source.start - len(source.indent) : source.end])
            if source.class_name is not None:
                methods.append(textwrap.indent(definition, "    "))
            else:
                plain.append(definition)
        out = "\n\n".join(plain)
        if methods:
            out += "\n\nclass Self:\n" + "\n\n".join(methods)
            classes = {s.class_name for s in self.helpers.values() if s.class_name} & _loads(f"{out}\n{text}")
            out += "".join(f"\n\n{c} = Self" for c in sorted(classes))  # `Norm.normalize(x)`
        out = "\n\n".join(p for p in (out, *self._named_dtypes(), helper) if p)
        lines = "\n".join(p for p in (self.imports_of(f"{out}\n{text}"), self._constants(out), out) if p)
        return lines + "\n" if lines else ""

    def _named_dtypes(self) -> Iterator[str]:
        """Stand-ins for what the module reads dtypes of, such as `Settings.precision`."""
        for node, name in self.dtypes.items():
            known = self.graph.facts.of(node).const
            dtype = known if known in FLOATS else "bfloat16"
            *path, last = name.split(".")
            around = [f"{'    ' * depth}class {part}:" for depth, part in enumerate(path)]
            yield "\n".join([*around, f"{'    ' * len(path)}{last} = mx.{dtype}"])

    def _constants(self, text: str) -> str:
        read = _loads(text)
        known = self.graph.module.constants
        return "\n".join(f"{n} = {known[n]!r}" for n in sorted(read & set(known)))

    def imports_of(self, text: str) -> str:
        """Import lines for names of the text that the module imports."""
        lines = []
        for name in sorted(_loads(text)):
            target = self.graph.module.resolve(name, MODULE) or self.graph.module.resolve(
                name, self.graph.context.qualname
            )
            if (
                target is None
                or KNOWN_MODULES.get(name) == target
                or target.partition(".")[0] not in ("mlx", "math", "functools")
            ):
                continue
            module, _, last = target.rpartition(".")
            if target in (
                "mlx.core",
                "mlx.nn",
                "math",
                "mlx.core.fast",
                "mlx.core.linalg",
                "mlx.core.random",
                "mlx.core.fft",
            ):
                lines.append(f"import {target} as {name}")
            elif module:
                lines.append(f"from {module} import {last} as {name}")
        return "\n".join(lines)

    # Text

    def before(self) -> str:
        if self.is_cut_in_a_helper:
            from fuselint.verify.reference import text_of

            text = text_of(self.graph, self.roots, self.names, double=False)
            if text is None:
                raise NotRunnable("an operand is made inside a helper, and the region has no text of its own")
            return text
        return "\n".join([*self._body({}), self._result({})]) + "\n"

    def after(self) -> str:
        if self.match.data.get("observe") is not None:
            texts = {r: self._filled(t) for r, t in self.templates.items()}
            return "\n".join([*self._body(texts), self._result(texts)]) + "\n"
        values = [self._filled(self.templates[r]) for r in self.roots]
        return f"result = {values[0] if len(values) == 1 else '(' + ', '.join(values) + ')'}\n"

    def _filled(self, template: str) -> str:
        for key, hole in self.replacement.holes.items():
            if isinstance(hole, Synthesised):
                text = hole.template
                for name, node in hole.operands.items():
                    if f"{{{name}}}" in text:
                        text = text.replace(f"{{{name}}}", self.names[node])
                text = f"({text})"
            else:
                text = self.names.get(hole, "")
            template = template.replace(f"{{{key}}}", text)
        return template

    def _is_in_a_helper(self, node: Node) -> bool:
        """Whether no expression of the function itself evaluates an operand, so that no cut of its text can read it."""
        return node.frame.depth > 0 and node not in self.graph.values.values()

    def _result(self, texts: Mapping[Node, str]) -> str:
        values = []
        for r in self.roots:
            expr = r.top_cst
            if isinstance(expr, cst.AugAssign) and isinstance(expr.target, cst.Name):
                values.append(expr.target.value)
            elif isinstance(expr, cst.BaseExpression):
                values.append(self._element(r, expr, texts))
            else:
                raise NotRunnable("its value joins several branches")
        return f"result = {values[0] if len(values) == 1 else '(' + ', '.join(values) + ')'}"

    def _element(self, root: Node, expr: cst.BaseExpression, texts: Mapping[Node, str]) -> str:
        held = self.graph.values.get(expr)
        text = self._text(expr, texts)
        if held is root:
            return f"({text})"
        if held is not None and root in held.inputs:
            return f"list({text})[{held.inputs.index(root)}]"
        raise NotRunnable("its value lies inside a helper")

    def _body(self, texts: Mapping[Node, str]) -> list[str]:
        """The statements that the result needs, those of the root itself apart."""
        sites = {self.tree.statement(e) for r in self.roots if isinstance(e := r.top_cst, cst.BaseExpression)}
        around = {s for r in self.roots if r.top_cst is not None for s in self.tree.up(r.top_cst)}
        self.assigned = {n for s in self.statements if s not in sites for n in _bound_in(s)}
        return list(self._suite(self.source.node.body.body, sites, around, "", texts))  # type: ignore[union-attr]

    def _suite(
        self,
        body: Iterable[cst.CSTNode],
        sites: set[cst.CSTNode],
        around: set[cst.CSTNode],
        indent: str,
        texts: Mapping[Node, str],
    ) -> Iterator[str]:
        for line in body:
            for s in line.body if isinstance(line, cst.SimpleStatementLine) else (line,):
                if s in around and isinstance(s, cst.BaseCompoundStatement):
                    if isinstance(s, (cst.For, cst.While)) and any(n.op == "loop" for n in self.inside):
                        raise NotRunnable("it depends on what a loop carries")  # else one turn of it is run
                    for inner in _suites(s):
                        if inner in around:
                            yield from self._suite(inner.body, sites, around, indent, texts)
                elif s in sites:
                    continue
                elif isinstance(s, cst.FunctionDef):
                    if s in self.nested:
                        yield from self._definition(s, indent)
                elif isinstance(s, cst.If):
                    if any(n in self.statements for n in walk(s)):
                        yield from self._if(s, sites, around, indent, texts)
                elif isinstance(s, cst.BaseCompoundStatement):
                    if any(n in self.statements for n in walk(s)):
                        raise NotRunnable(f"it takes a `{type(s).__name__.lower()}` statement")
                elif s in self.statements:
                    yield indent + self._text(s, texts)

    def _if(
        self, s: cst.If, sites: set[cst.CSTNode], around: set[cst.CSTNode], indent: str, texts: Mapping[Node, str]
    ) -> Iterator[str]:
        yield f"{indent}if {self._text(s.test, texts)}:"
        deeper = indent + "    "
        yield from list(self._suite(s.body.body, sites, around, deeper, texts)) or [f"{deeper}pass"]
        if isinstance(s.orelse, cst.If):
            rest = list(self._if(s.orelse, sites, around, deeper, texts))
        elif s.orelse is not None:
            rest = list(self._suite(s.orelse.body.body, sites, around, deeper, texts))
        else:
            rest = []
        if rest:
            yield f"{indent}else:"
            yield from rest

    def _definition(self, f: cst.FunctionDef, indent: str) -> Iterator[str]:
        start, end = self.source.span(f)
        line = self.source.file.position(start)[0]
        first = self.source.file.starts[line - 1]
        text = textwrap.dedent(self.source.file.text[first:end].rstrip())
        inner = _bound_in(f)
        for n in _loads(text) - inner:
            for node, name in self.names.items():
                if node.attrs.get("name") == n and node.op == "param" and name != n:
                    raise NotRunnable(f"`{f.name.value}` reads `{n}`, which is rebound")
        yield from textwrap.indent(text, indent).split("\n")

    def _text(self, node: cst.CSTNode, texts: Mapping[Node, str]) -> str:
        """The text of a statement or expression, on one line, with inputs for operands."""
        start, end = self.source.span(node)
        pieces: list[str] = []
        at = start
        for a, b, text in sorted(self._replaced(node, texts)):
            pieces += [self.source.file.text[at:a], text]
            at = b
        pieces.append(self.source.file.text[at:end])
        return _joined("".join(pieces))

    def _replaced(self, node: cst.CSTNode, texts: Mapping[Node, str]) -> list[tuple[int, int, str]]:
        out: list[tuple[int, int, str]] = []
        stack: list[cst.CSTNode] = [node]
        while stack:
            n = stack.pop()
            text = self._input_text(n, texts)
            if text is not None:
                out.append((*self.source.outer_span(n), text))
            elif isinstance(n, (cst.Attribute, cst.Arg)):
                stack.append(n.value)
            elif isinstance(n, cst.Call) and (called := self._called(n)) is not None:
                out.append((*self.source.outer_span(n.func), called))
                stack += n.args
            elif isinstance(n, cst.AugAssign):
                target = next((x for x in self.inside if x.cst is n), None)
                if target is not None and target.inputs[0] in self.names:
                    raise NotRunnable("an operand is changed in place")
                stack.append(n.value)
            elif isinstance(n, cst.AnnAssign):
                stack += [n.value] if n.value is not None else []
            elif not isinstance(n, (cst.AssignTarget, cst.Lambda)):
                stack += children(n)
        return out

    def _called(self, call: cst.Call) -> str | None:
        """`nn.silu` for `self.act`, where `__init__` says that it is that; what is so by default stays by its name."""
        held = self.graph.values.get(call)
        func = call.func
        if held is None or held.cst is not call or held.frame.depth > 0:
            return None
        if not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Name):
            return None
        default = held.attrs.get("default")
        if default is not None and default.attrs.get("target") and func.value.value == self.first:
            self._stand_in(f"self.{func.attr.value}", default, call)
            return f"self.{func.attr.value}"
        op = TABLE.get(held.op)
        if op is None or func.value.value != self.first or op.method == func.attr.value:
            return None
        new = held.attrs.get("new")
        if new is not None and (op.function is None or new.inputs):
            self._stand_in(f"self.{func.attr.value}", new, call)
            return f"self.{func.attr.value}"
        try:
            return Formula.function(op).format(mx="mx", nn="nn")
        except NoText as why:
            raise NotRunnable(str(why)) from None

    def _stand_in(self, name: str, new: Node, call: cst.Call) -> None:
        """What the region is given to call: a layer of mlx.nn, of the same arguments, with weights of its own, or a
        function of mlx.nn."""
        target = str(new.attrs["target"])
        if not target.startswith("mlx.nn.") or target.count(".") != 2:
            raise NotRunnable(f"`{name}` is a layer of {target.rpartition('.')[0]}")
        text = target.removeprefix("mlx.")
        if new.op == "new":
            width, named = self._width(call), new.attrs["args"].items()
            args = [f"{k}={width if k in WIDTHS and width else self._argument(name, node)}" for k, node in named]
            text += f"({', '.join(args)})"
        self.layers[name] = RegionInput(name, "object", value=text)

    def _width(self, call: cst.Call) -> str | None:
        """What the match calls the last axis of the operand that a layer is called on."""
        held = self.graph.values.get(call.args[0].value) if call.args else None
        while held is not None and held.op == "astype":
            held = held.inputs[0]
        shape = self.match.shapes.get(self.keys.get(held, "")) if held is not None else None
        return shape[-1] if shape and shape[-1].isidentifier() else None

    def _argument(self, name: str, node: Node) -> str:
        const = self.graph.facts.const(node)
        if const is None or isinstance(const, (bool, int, float, str)):
            return repr(const)
        size = self.graph.facts.size(node)
        if size is None:
            raise NotRunnable(f"`{name}` is a layer of arguments that nothing says")
        return self._axis(size)

    def _input_text(self, n: cst.CSTNode, texts: Mapping[Node, str]) -> str | None:
        """What stands for a whole expression: an input, or the replacement of a root."""
        held = self.graph.values.get(n)
        if held is None:
            return None
        if held in texts:
            return f"({texts[held]})"
        if held.op in ("tuple", "list") and isinstance(n, cst.Call) and any(i in texts for i in held.inputs):
            return "(" + "".join(f"{texts[i] if i in texts else self._given(i)}, " for i in held.inputs) + ")"
        if held in self.names:
            return self.names[held]
        if held.op == "const" and isinstance(n, cst.Name) and n.value not in self.assigned:
            from fuselint.verify.reference import CannotEmit, constant

            try:
                return constant(held.attrs["value"], held.attrs.get("kind") == "dtype")
            except CannotEmit:
                raise NotRunnable(f"it reads the constant `{n.value}`") from None
        return None

    def _given(self, node: Node) -> str:
        if node not in self.names:
            raise NotRunnable("a value beside the replaced one is computed in the same expression")
        return self.names[node]


def _is_of_numbers(node: Node) -> bool:
    """Whether a value is made of nothing but numbers in the text, as `mx.sqrt(2 / mx.pi)` is: it is no input."""
    waiting, seen = [node], {node}
    while waiting:
        n = waiting.pop()
        inputs = list(operands(n))
        if not inputs and n.op != "const":
            return False
        waiting += [i for i in inputs if i not in seen]
        seen.update(inputs)
    return True


def _suites(s: cst.CSTNode) -> Iterator[cst.BaseSuite]:
    for c in children(s):
        if isinstance(c, cst.BaseSuite):
            yield c
        elif isinstance(c, (cst.Else, cst.If, cst.Finally, cst.ExceptHandler, cst.MatchCase)):
            yield from _suites(c)


def _led(shape: tuple[str, ...] | None, lead: tuple[str, ...]) -> tuple[str, ...] | None:
    return (*lead, *shape[1:]) if shape and shape[0] == "..." else shape


def _bound_in(s: cst.CSTNode) -> set[str]:
    if isinstance(s, cst.FunctionDef):
        return {s.name.value, *(n.name.value for n in walk(s.params) if isinstance(n, cst.Param))}
    if isinstance(s, cst.BaseCompoundStatement):
        return set()
    return names_bound(s)


def _loads(text: str) -> set[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return set()
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _joined(text: str) -> str:
    """A statement over several lines stays one: inside brackets, its lines may have any indentation."""
    return text.replace("\r\n", "\n")
