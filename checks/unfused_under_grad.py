"""FUS304 unfused-under-grad: a training step that is not compiled, with activations in it that MLX compiles otherwise.

What it does: finds the places where `nn.value_and_grad`, `mx.value_and_grad` or `mx.grad` differentiates a loss, and
follows its result to the step that calls it and updates an optimizer with the gradients, where nothing compiles that
step.

Why: a transformation such as a gradient traces the function that was compiled, not its kernels. So `nn.silu`,
`nn.gelu_approx` and whatever is under `@mx.compile` for itself run one operation at a time there, forward and
backward; so do the loss, and the optimizer's arithmetic on every weight. Compiled as a whole, the step is fused: the
gradient of `nn.gelu_approx` is 23 kernels alone and 6 compiled, an Adam step of Linear, GELU, Linear 86 and 22, with
the same bits.

Traffic: each of those operations reads and writes an activation, or a weight.

When not to: where the step reads a value out on its way, such as a loss that is tested before the update; where batches
have ever new shapes, since each is traced and compiled once; where a Python number that changes is an argument.

Fix safety: none is made. What the step changes has to be captured both ways, as inputs and outputs: the model's state,
the optimizer's, and the random state, if dropout draws from it. Side effects run once, when it is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from fuselint.finding import Obligation
from fuselint.graph.compiling import reached
from fuselint.graph.facts import MISSING
from fuselint.graph.flow import arguments, callee
from fuselint.graph.growth import grows
from fuselint.graph.inline import CHANGES
from fuselint.graph.model import Graph, Node, operands
from fuselint.graph.ops import TABLE, function_of
from fuselint.graph.primitives import ACTIVATIONS
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS304", "unfused-under-grad"

HEAD = "from functools import partial\nimport mlx.core as mx\nimport mlx.nn as nn\nimport mlx.optimizers as optim\n\n\n"

GRADIENTS = frozenset({"mlx.nn.value_and_grad", "mlx.core.value_and_grad", "mlx.core.grad"})
UPDATES = frozenset({"update", "apply_gradients"})
"""Methods of an optimizer that take gradients."""

READS = frozenset(
    "mlx.core.eval mlx.core.async_eval builtins.print builtins.float builtins.int builtins.bool builtins.str "
    "numpy.array numpy.asarray".split()
)
OUTSIDE = frozenset({"global", "attr", "param"})
"""What a function finds and doesn't make."""

READING_METHODS = frozenset({"item", "tolist"})
FARTHEST = 3
"""Functions through which a gradient function is handed on."""


def unfused(x: Any) -> Any:
    """23 kernels: the compiled activation is differentiated operation by operation."""
    import mlx.core as mx
    import mlx.nn as nn

    return mx.value_and_grad(lambda x: nn.gelu_approx(x).sum())(x)


def fused(x: Any) -> Any:
    """6 kernels."""
    import mlx.core as mx
    import mlx.nn as nn

    return mx.compile(mx.value_and_grad(lambda x: nn.gelu_approx(x).sum()))(x)


def find(graph: Graph) -> Iterator[Match]:
    for root, where, made in _gradients(graph):
        calls = [(graph, root)] if where is not graph else list(dict.fromkeys(_calls(graph, made)))
        steps = [s for at, call in calls if (s := _step(at, call)) is not None]
        if steps and not any(_is_compiled(s.graph) for s in steps):
            yield _match(root, where, made, steps)


def _gradients(graph: Graph) -> Iterator[tuple[Node, Graph, Node]]:
    """(where to report it, graph, gradient function): of those made here, and of calls of one that `__init__` made."""
    own = graph.context.class_name
    init = graph.program.init(own) if graph.program is not None and own is not None else None
    for node in graph.nodes:
        if node.op != "call" or node.frame.depth:
            continue
        if node.attrs.get("target") in GRADIENTS:
            yield node, graph, node
        elif init is not None and init is not graph and str(_path(node)).startswith("self."):
            made = init.stored.get(str(_path(node)).removeprefix("self."))
            if made is not None and made.op == "call" and made.attrs.get("target") in GRADIENTS:
                yield node, init, made


def _path(call: Node) -> str | None:
    """The dotted text of what a node calls, where it starts at a name."""
    function = call.attrs.get("callee")
    return call.attrs.get("path") or (function.attrs.get("path") if isinstance(function, Node) else None)


# -- the step ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """Where a gradient is taken and an optimizer updates with it."""

    graph: Graph
    gradient: Node  # the call
    update: Node  # the call of the optimizer's method


def _calls(graph: Graph, made: Node, depth: int = 0) -> Iterator[tuple[Graph, Node]]:
    """The calls of the gradient function that a value is: here, in inner functions, in methods, where it is passed."""
    if graph.program is None or depth > FARTHEST:
        return
    names = {n for n, bound in graph.bindings.items() if any(b.node is made for b in bound)}
    for node in graph.nodes:
        if node.op != "call":
            continue
        if node.attrs.get("callee") is made:
            yield from _at_home(graph, node)
        if node.frame.depth:
            continue
        given, inner = arguments(graph, node), callee(graph, node)
        for parameter, value in (given or {}).items():
            if value is made and inner is not None and parameter in inner.params and not inner.not_understood:
                yield from _calls(inner, inner.params[parameter], depth + 1)
    me = graph.context.qualname
    for qualname, function in graph.module.functions.items():
        if names and function.span.outer == me and not names & function.local:
            yield from _called_as(graph.program.graph(qualname), names)
    kept = {e.path for e in graph.effects if e.kind == "store" and e.value is made and e.path.startswith("self.")}
    if kept and graph.context.class_name is not None:
        methods = graph.module.classes[graph.context.class_name].methods
        for qualname in methods.values():
            if qualname in graph.module.functions and qualname != me:
                yield from _called_as(graph.program.graph(qualname), kept)


def _at_home(graph: Graph, call: Node) -> Iterator[tuple[Graph, Node]]:
    """A call in the function that it stands in, which may be inlined here."""
    home = graph.program.graph(call.frame.qualname) if call.frame.depth and graph.program is not None else graph
    for node in home.nodes if home is not None and not home.not_understood else ():
        if home is not None and node.op == "call" and node.cst is call.cst and not node.frame.depth:
            yield home, node


def _called_as(graph: Graph | None, names: set[str]) -> Iterator[tuple[Graph, Node]]:
    """The calls of a function by a name of the function around it, or by an attribute of self."""
    if graph is None or graph.not_understood:
        return
    for node in graph.nodes:
        function = node.attrs.get("callee") if node.op == "call" else None
        named = isinstance(function, Node) and function.op == "global" and function.attrs["name"] in names
        if node.op == "call" and not node.frame.depth and (named or _path(node) in names):
            yield graph, node


def _step(graph: Graph, gradient: Node) -> _Step | None:
    """The step that a gradient is taken in, if it goes on to an optimizer there."""
    after = _made_of(graph, gradient)
    for node in graph.nodes:
        function = node.attrs.get("callee") if node.op == "call" else None
        if node.frame.depth or not isinstance(function, Node) or function.op != "attr":
            continue
        if function.attrs["name"] in UPDATES and len(node.inputs) == 2 and after & set(node.inputs):
            return _Step(graph, gradient, node)
    return None


def _made_of(graph: Graph, node: Node) -> set[Node]:
    """What depends on a value."""
    out, stack = {node}, [node]
    while stack:
        for user in graph.users.get(stack.pop(), ()):
            if user not in out:
                out.add(user)
                stack.append(user)
    return out


def _is_compiled(graph: Graph) -> bool:
    """Whether a step, or a function around it, is compiled somewhere, or handed to what may compile it."""
    at: str | None = graph.context.qualname
    while at is not None:
        named = any(at in used for used in graph.module.references.values())
        if at in graph.module.compiled or named or any(c.target == at for c in graph.module.compilations):
            return True
        at = graph.module.functions[at].span.outer
    return False


# -- what is said ------------------------------------------------------------------------------------------------------


def _match(root: Node, graph: Graph, made: Node, steps: list[_Step]) -> Match:
    inside = _Inside.of(graph, made)
    step = steps[0]
    where = step.graph.context.qualname.rpartition(".")[2]
    what = inside.activation or "any activation that MLX compiles"
    return Match(
        code=CODE,
        root=root,
        holes={},
        message=f"{where} takes a gradient and updates an optimizer, and is not compiled: {what} runs unfused in it, "
        "forward and backward",
        obligations=[
            Obligation("the step is not compiled", "proven", f"nothing in the file compiles {where}"),
            inside.obligation(),
            inside.changes_nothing(),
            _reads_nothing(step),
            _captures(step),
            _few_shapes(step),
            _no_number(step),
        ],
        region=frozenset({root}),
        related=[p for s in steps for p in ((s.gradient, "the gradient"), (s.update, "the update"))],
        data={"state": _state(step, inside.draws), "step": where},
        has_traffic=False,
    )


@dataclass(slots=True, eq=False)
class _Inside:
    """What a loss runs. activation: one that MLX compiles, and where; open: what keeps the rest unknown.

    draws: whether it draws random numbers; None where that is not known. changes: where it changes what is not its own.
    """

    activation: str = ""
    place: str = ""
    open: str = ""
    changes: str = ""
    loss: str = ""
    with_model: bool = False
    model: frozenset[str] = frozenset()  # its names where it is differentiated
    draws: bool | None = False
    seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph, made: Node) -> _Inside:
        out = cls()
        given = dict(
            zip(made.attrs["keywords"], made.inputs[len(made.inputs) - len(made.attrs["keywords"]) :], strict=True)
        )
        positional = made.inputs[: len(made.inputs) - len(given)]
        out.with_model = with_model = made.attrs["target"] == "mlx.nn.value_and_grad"
        function = given.get("fn") or given.get("fun") or next(iter(positional[1 if with_model else 0 :]), None)
        out.loss = _function(graph, function) or "" if function is not None else ""
        model = given.get("model") or next(iter(positional), None) if with_model else None
        name = None if model is None else _class_of(graph, model)
        call = graph.module.method(name, "__call__") if name is not None else None
        if model is not None and call is not None:
            out.model = frozenset(n for n, bound in graph.bindings.items() if any(b.node is model for b in bound))
            out.enter(graph, call)
        elif with_model:
            out.leave("the model comes from outside the file")
        if out.loss:
            out.enter(graph, out.loss)
        else:
            out.leave("the loss is not known")
        return out

    def leave(self, why: str) -> None:
        self.open = self.open or why
        self.draws = self.draws or None

    def enter(self, graph: Graph, qualname: str) -> None:
        inner = graph.program.graph(qualname) if graph.program is not None else None
        if inner is None or inner.not_understood:
            self.leave(f"{qualname} is not understood")
            return
        for e in inner.effects:
            if e.kind != "unknown":
                self.changes = self.changes or f"{qualname} changes {e.path or 'an argument'}"
        for _, node, where in reached(inner):
            self.look(where, node)

    def look(self, graph: Graph, node: Node) -> None:
        op = TABLE.get(node.op)
        name = function_of(node) or node.op
        if name in ACTIVATIONS and len(TABLE[name].primitives) > 1:
            self.find(graph, node, name)
        elif op is not None and (op.kind == "random" or op.name.startswith("nn.Dropout")):
            self.draws = True
        elif node.op == "call":
            self.look_at_call(graph, node)

    def look_at_call(self, graph: Graph, node: Node) -> None:
        function, target = node.attrs.get("callee"), node.attrs.get("target")
        if isinstance(function, Node) and function.op == "attr" and function.attrs["name"] in CHANGES:
            if function.inputs[0].op in OUTSIDE:
                self.changes = self.changes or f"line {_line(graph, node)} calls {function.attrs['name']}"
        elif isinstance(function, Node) and function.op in OUTSIDE and self.is_model(graph, function):
            return  # it is entered by itself
        info = graph.module.compiled.get(target) if isinstance(target, str) else None
        if info is not None and info.how != "called" and isinstance(target, str):
            self.find(graph, node, target.rpartition(".")[2])
        elif not isinstance(target, str) or not (
            target in graph.module.functions or target.startswith(("builtins.", "mlx.core."))
        ):
            self.leave(f"{graph.context.qualname} calls what is not known")

    def is_model(self, graph: Graph, function: Node) -> bool:
        """Whether the loss calls the model there: its first argument, or by the name that the model has outside."""
        if graph.context.qualname != self.loss:
            return False
        if function.op == "param":
            return function is next(iter(graph.params.values()), None)
        return function.attrs["name"] in self.model

    def find(self, graph: Graph, node: Node, name: str) -> None:
        if not self.activation:
            self.activation = name
            self.place = f"{name} in {graph.context.qualname}"

    def changes_nothing(self) -> Obligation:
        """Side effects run once, when the step is traced."""
        claim = "its loss changes nothing outside"
        if self.changes:
            return Obligation(claim, "contradicted", self.changes)
        return Obligation(claim, "unknown" if self.open else "proven", self.open or "it only computes")

    def obligation(self) -> Obligation:
        claim = "it runs activations that MLX compiles"
        if self.activation:
            return Obligation(claim, "proven", self.place)
        if not self.with_model and not self.loss:
            return Obligation(claim, "contradicted", "neither a model nor the loss is known")
        if self.open:
            return Obligation(claim, "unknown", self.open)
        return Obligation(claim, "contradicted", "the loss and its model run none")


def _function(graph: Graph, node: Node) -> str | None:
    """The function of this file that a value is."""
    if node.op == "call" and node.attrs.get("target") == "functools.partial" and node.inputs:
        return _function(graph, node.inputs[0])
    if node.op == "function":
        return str(node.attrs["qualname"])
    if node.op == "global" and node.attrs.get("target") in graph.module.functions:
        return str(node.attrs["target"])
    own = graph.context.class_name
    if node.op == "attr" and own is not None and node.attrs.get("path") == f"self.{node.attrs['name']}":
        return graph.module.method(own, node.attrs["name"])
    return None


def _class_of(graph: Graph, model: Node) -> str | None:
    """The class of this file that a model is an instance of."""
    if model.op == "attr" and isinstance(model.attrs.get("init"), Node):
        model = model.attrs["init"]
    name = model.attrs.get("target") if model.op == "new" else model.attrs.get("annotation")
    return name if isinstance(name, str) and name in graph.module.classes else None


def _reads_nothing(step: _Step) -> Obligation:
    """Whether no value is read out between the gradient and the update: a trace has none."""
    graph, claim = step.graph, "nothing is read out on the way to the update"
    made = _made_of(graph, step.gradient)
    for node in graph.nodes:
        if step.gradient.id < node.id < step.update.id and _reads(graph, node, made):
            return Obligation(claim, "contradicted", f"line {_line(graph, node)} needs a value")
    first, last = step.gradient.stmt, step.update.stmt
    for s in graph.statements:
        if first is not None and last is not None and first.index < s.index <= last.index:
            test = getattr(s.cst, "test", None)
            held = graph.values.get(test) if test is not None else None
            if held is not None and _tests_an_array(graph, held, made):
                return Obligation(claim, "contradicted", f"line {_line(graph, held)} tests an array")
    return Obligation(claim, "proven", "neither item() nor eval, nor a test of an array")


def _tests_an_array(graph: Graph, test: Node, made: set[Node]) -> bool:
    if test.op in ("not", "and", "or"):
        return any(_tests_an_array(graph, n, made) for n in test.inputs)
    return test in made and test.op != "compare" and graph.facts.kind(test) in ("array", "unknown")


def _reads(graph: Graph, node: Node, made: set[Node]) -> bool:
    if node.op != "call":
        return False
    function, target = node.attrs.get("callee"), node.attrs.get("target")
    if isinstance(function, Node) and function.op == "attr" and function.attrs["name"] in READING_METHODS:
        return function in made
    if target in READS:
        return target == "mlx.core.eval" or bool(made & set(node.inputs))
    inner = callee(graph, node) if made & set(operands(node)) else None
    return inner is not None and any(
        n.op == "call" and n.attrs.get("target") in READS for _, n, _ in reached(inner, {graph.context.qualname})
    )


def _captures(step: _Step) -> Obligation:
    claim = "all that it changes is named: the model, the optimizer, the random state"
    texts = _objects(step)
    if any(t is None or not t.replace(".", "").replace("_", "").isalnum() for t in texts):
        return Obligation(claim, "unknown", "a call gives the model or the optimizer")
    return Obligation(claim, "proven", " and ".join(t for t in texts if t))


def _objects(step: _Step) -> list[str | None]:
    """The texts of the model and of the optimizer; of apply_gradients, which gives the weights back, no model's."""
    call = step.update.cst
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return [None]
    code = step.graph.source.code
    optimizer = code(call.func.value)
    if call.func.attr.value != "update":
        return [optimizer]
    named = [a for a in call.args if a.keyword is not None and a.keyword.value == "model"]
    first = (named or list(call.args))[0]
    return [code(first.value), optimizer]


def _state(step: _Step, draws: bool | None) -> str:
    parts = [f"{text}.state" for text in _objects(step) if text is not None]
    return ", ".join([*parts, *(["mx.random.state"] if draws is not False else [])])


def _few_shapes(step: _Step) -> Obligation:
    claim = "its batches have few shapes"
    for argument in step.gradient.inputs:
        longer = grows(step.graph, argument)
        if longer is not None:
            line = _line(step.graph, longer)
            return Obligation(claim, "contradicted", f"line {line} makes an argument longer at every step")
    return Obligation(claim, "unknown", "the batches come from outside: pad them to a few lengths")


def _no_number(step: _Step) -> Obligation:
    claim = "no argument is a Python number that changes"
    for n in step.gradient.inputs:
        base = n.inputs[0].attrs.get("target") if n.op == "item" and n.inputs else None
        counted = base == "builtins.range" or (base == "builtins.enumerate" and n.attrs.get("index") == 0)
        if counted or (n.op == "loop" and step.graph.facts.kind(n) == "scalar"):
            return Obligation(claim, "contradicted", "a loop counts one")
    facts = step.graph.facts
    numbers = [n for n in step.gradient.inputs if facts.kind(n) == "scalar" and facts.const(n) is MISSING]
    if numbers or any(n.op == "star" for n in step.gradient.inputs):
        return Obligation(claim, "unknown", "nothing says what is among them")
    return Obligation(claim, "proven", "none is known to be a number")


def _line(graph: Graph, node: Node) -> int:
    at = node.top_cst
    return graph.source.file.position(graph.source.span(at)[0] if at is not None else graph.source.start)[0]


MODEL = """class MLP(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.up = nn.Linear(dims, 4 * dims)
        self.down = nn.Linear(4 * dims, dims)

    def __call__(self, x):
        return self.down(nn.{activation}(self.up(x)))


def loss_fn(model, x, y):
    return nn.losses.mse_loss(model(x), y)


"""

LOOP = """def train(batches):
    model = MLP(64)
    optimizer = optim.Adam(1e-3)
    loss_and_grad = nn.value_and_grad(model, loss_fn)
    for x, y in batches:
        loss, grads = loss_and_grad(model, x, y)
{between}        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state, loss)
"""

STEP = """def train(batches):
    model = MLP(64)
    optimizer = optim.Adam(1e-3)
    loss_and_grad = nn.value_and_grad(model, loss_fn)
    state = [model.state, optimizer.state]

{decorator}    def step(x, y):
        loss, grads = loss_and_grad(model, x, y)
        optimizer.update(model, grads)
        return loss

{compiled}    for x, y in batches:
        mx.eval(step(x, y), state)
"""

GELU = HEAD + MODEL.format(activation="gelu_approx")

EXAMPLES = [
    Example(GELU + LOOP.format(between=""), applicability="none"),
    Example(GELU + STEP.format(decorator="", compiled=""), applicability="none"),
    Example(
        HEAD + "class Trainer:\n"
        "    def __init__(self, model, optimizer):\n"
        "        self.model = model\n"
        "        self.optimizer = optimizer\n"
        "        self.loss_and_grad = nn.value_and_grad(model, self.loss)\n\n"
        "    def loss(self, x, y):\n"
        "        return nn.losses.cross_entropy(self.model(x), y).mean()\n\n"
        "    def step(self, x, y):\n"
        "        loss, grads = self.loss_and_grad(x, y)\n"
        "        self.optimizer.update(self.model, grads)\n"
        "        return loss\n",
        applicability="none",
        why="the model comes from outside, so its activations are not known; the finding says so",
    ),
]

COUNTEREXAMPLES = [
    Example(
        GELU + STEP.format(decorator="    @partial(mx.compile, inputs=state, outputs=state)\n", compiled=""),
        why="the step is compiled",
    ),
    Example(
        GELU + STEP.format(decorator="", compiled="    step = mx.compile(step, inputs=state, outputs=state)\n\n"),
        why="the step is compiled",
    ),
    Example(
        GELU + LOOP.format(between="        if mx.isnan(loss):\n            continue\n"),
        why="the loss is tested before the update: a trace has no value",
    ),
    Example(
        HEAD + MODEL.format(activation="relu") + LOOP.format(between=""),
        why="a maximum with zero is one kernel, compiled or not",
    ),
    Example(
        GELU + "def sensitivity(model: MLP, x, y):\n"
        "    loss, grads = nn.value_and_grad(model, loss_fn)(model, x, y)\n"
        "    return grads\n",
        why="no optimizer: no training step",
    ),
    Example(
        GELU.replace("    return nn.losses", "    seen.append(x)\n    return nn.losses").replace(
            "def loss_fn", "seen = []\n\n\ndef loss_fn"
        )
        + LOOP.format(between=""),
        why="the loss appends to a list: a trace does that once",
    ),
    Example(
        HEAD + "def descend(f, point, optimizer):\n"
        "    for _ in range(100):\n"
        "        grads = mx.grad(f)(point)\n"
        '        point = optimizer.apply_gradients({"p": grads}, {"p": point})["p"]\n'
        "    return point\n",
        why="nothing says that a model is trained",
    ),
]
