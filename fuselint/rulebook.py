"""What a rule is, which rules there are, and which match owns which nodes.

A rule is a module in `checks/` and one of the same name in `fixers/`; both are found by walking the packages.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fuselint.config import Selection, Settings, nearest, selections
from fuselint.errors import ConfigError, FuselintError
from fuselint.finding import UNREADABLE, Numerics, Obligation, RegionInput
from fuselint.graph.fact import Place
from fuselint.graph.model import Graph, Node
from fuselint.graph.values import Value
from fuselint.plugins import packages
from fuselint.source.discovery import covers

if TYPE_CHECKING:
    from fuselint.traffic.kernels import Kernel


@dataclass(frozen=True, slots=True, eq=False)
class Synthesised:
    """A scalar that no single expression of the source holds: Python text with `{name}` for values.

    `Synthesised("{q}.shape[-1] ** -0.5", {"q": queries})`. Without operands it is a literal, such as "0.125".
    """

    template: str
    operands: Mapping[str, Node] = field(default_factory=dict)


UNUSED = "FUS900"
"""With UNREADABLE the codes of the engine's own findings, which no rule makes: fuselint/unreadable.py and unused.py."""

OWN = {UNREADABLE: "fuselint.unreadable", UNUSED: "fuselint.unused"}

HOUSE_ASSUMPTIONS = (
    "activations are real floating-point arrays of rank 1 or more",
    "a weight has the rank and the dtype that `__init__` and loading give it, and its axes are longer than 1",
    "an operand of unknown shape adds no axes to the other",
)
"""What every rule takes as proven without evidence in the source."""

Hole = Node | Synthesised
"""What a template's `{name}` stands for: a value as written, or a scalar made for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A small array that the fixed code makes for a kernel: as long as the last axis of `like`, and of its dtype."""

    op: str
    like: Node
    reads: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class FusedKernel:
    """A kernel of the fixed code: what it reads from DRAM and writes to it. `writes` has the size of that node.

    made: what it reads besides, which a kernel before it makes. wide: its first operand is cast to float32 for it.
    """

    op: str
    reads: tuple[Node, ...]
    writes: Node
    made: tuple[Made, ...] = ()
    wide: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """A rule's own count of the kernels, of code that is grouped differently: those that are there now, and after.

    form: what the code is called that has the second ones, such as "plain mx.compile".
    wide: both where activations are float32, in which a cast to it is nothing.
    """

    now: Sequence[Kernel]
    after: Sequence[Kernel]
    form: str
    wide: Callable[[], tuple[Sequence[Kernel], Sequence[Kernel]]] | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What verification compares where a fix changes the value itself: a mask that becomes a string.

    text: a statement that takes `result` and leaves in it what must not change. inputs: further ones that it reads;
    an axis of theirs that names a hole has that scalar's size.
    """

    text: str
    inputs: tuple[RegionInput, ...] = ()


@dataclass(slots=True, eq=False)
class Match:
    """A place where a rule applies. Holds graph nodes, so it never leaves the worker that made it.

    root: the value that the replacement computes; the finding stands at its expression.
    holes: the operands of the computation, by the rule's names.
    region: what the match owns (see `claim`): by default the slice from root down to the holes.
    also: further values of the region that the replacement computes, besides the root.
    shapes: example shapes of the array holes, for verification: symbol names or numbers, "..." for free leading axes.
    scalars: sizes that scalars of the region have in these names, by their canonical value: `self.n_heads` is "n*G".
    probe: how to compare, where the value itself changes by design.
    dtypes: example dtypes of holes where not "activation": "weight", "mask", "int", "bool" or a fixed one.
    data: the rule's own notes for its fixer.
    has_traffic: whether the finding is about bytes and kernels; a fault of correctness is not.
    launches: the kernels now and after, where the region and `fused` don't say them.
    is_shared: advice on a change of several functions: it owns nothing, so that others may mend parts meanwhile.
    narrower: makes a match on a part of the region, reported instead where that can be rewritten and this can't.
    """

    code: str
    root: Node
    holes: dict[str, Hole]
    message: str
    obligations: list[Obligation]
    region: frozenset[Node]
    fused: tuple[FusedKernel, ...] = ()
    also: tuple[Node, ...] = ()
    shapes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    scalars: dict[Value, str] = field(default_factory=dict)
    probe: Probe | None = None
    numerics: Numerics = "bit-identical"
    related: list[tuple[Node | Place, str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    has_traffic: bool = True
    launches: Launches | None = None
    is_shared: bool = False
    narrower: Callable[[], Match | None] | None = None

    @property
    def contradicted(self) -> bool:
        return any(o.verdict == "contradicted" for o in self.obligations)


@dataclass(frozen=True, slots=True)
class HoistedHelper:
    """A module-level function under `@mx.compile` that a fix calls.

    `body` is the expression it returns, in terms of `params`, with `{mx}` and `{nn}` for the modules; `name` is the
    wished name: placement makes it unique, or takes the helper of that body that the module already has.
    """

    name: str
    params: tuple[str, ...]
    body: str
    shapeless: bool = False
    doc: str = ""
    statements: tuple[str, ...] = ()  # assignments before the return, where the body has shared values
    annotations: Mapping[str, str] = field(default_factory=dict)  # of parameters that aren't arrays; "" for none


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Replace the value `root` by `template`: `{hole}` for operands, `{mx}`, `{nn}` for modules, `{helper}`."""

    root: Node
    template: str


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """What a fixer proposes. Applicability follows from the obligations; `cap` lowers it."""

    parts: tuple[Part, ...]
    holes: Mapping[str, Hole]
    message: str = ""
    numerics: Numerics | None = None  # None: the match's
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    helper: HoistedHelper | None = None
    modules: Mapping[str, str] = field(default_factory=dict)  # other modules than MLX's that the templates read
    cap: str = ""  # "unsafe" or "none": at most that
    because: str = ""  # why it is capped


@dataclass(frozen=True, slots=True)
class NoFix:
    """Why a match is advice only."""

    reason: str


@dataclass(frozen=True, slots=True)
class Example:
    """Source that a rule reports, with the fixed text; or, as a counterexample, source that it doesn't report."""

    source: str
    fixed: str | None = None  # None: reported without edits, or a counterexample
    applicability: str = "safe"
    why: str = ""


@dataclass(frozen=True)
class Rule:
    """A check and its fixer, or a finding of the engine's own, which has a page only.

    nearly: the values around which a graph may nearly hold a match; None: near misses are not looked for.
    numbers: constants of the computation that others may stand for. one_value: whether it reads one value twice.
    claims_before: the code or prefix of CLAIM_ORDER before which a plugin's rule owns its nodes; last, where it is "".
    """

    code: str
    name: str
    page: str
    find: Callable[[Graph], Iterator[Match]]
    fix: Callable[[Graph, Match], Replacement | NoFix] | None
    examples: Sequence[Example]
    counterexamples: Sequence[Example]
    check: ModuleType
    fixer: ModuleType | None
    nearly: Callable[[Graph], Iterator[Node]] | None = None
    numbers: tuple[float, ...] = ()
    one_value: bool = False
    claims_before: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is fuselint's own, and no plugin's."""
        return self.check.__name__.partition(".")[0] == "fuselint"


CLAIM_ORDER = tuple("FUS211 FUS20 FUS221 FUS241 FUS231 FUS252 FUS251 FUS261 FUS1 FUS301 FUS302".split())
"""Who owns a node first: codes, by prefix."""


def claim_rank(code: str) -> float:
    """The place of a rule in the order of claims."""
    before = _before().get(code)
    if before:
        return claim_rank(before) - 0.5
    return next((i for i, p in enumerate(CLAIM_ORDER) if code.startswith(p)), len(CLAIM_ORDER))


@cache
def _before() -> dict[str, str]:
    return {r.code: r.claims_before for r in rules() if not r.is_ours and r.claims_before in CLAIM_ORDER}


GIVEN = frozenset({"const", "param", "attr", "global", "function"})
"""Operations of nodes that compute nothing: nobody owns them, whether a region lists them or not."""


def claim(matches: Iterable[Match]) -> list[Match]:
    """Drop the matches that lie wholly inside what another owns. All finders have run; suppressed matches count too.

    Within a rule the larger region goes first. FUS261 yields to a longer FUS301 that contains it.
    """
    work = {m: frozenset(n for n in m.region if n.op not in GIVEN) or m.region for m in matches}

    def rank(m: Match) -> tuple[float, int, int]:
        return claim_rank(m.code), -len(work[m]), m.root.id

    ordered = sorted(work, key=rank)
    chains = [work[m] for m in ordered if m.code == "FUS301"]
    owned: set[Node] = set()
    kept: list[Match] = []
    for m in ordered:
        if m.code == "FUS261" and any(work[m] < c and not c & owned for c in chains):
            continue
        if work[m] <= owned or (m.code == "FUS301" and work[m] & owned):
            continue  # a chain that is partly another's is looked at again when that is fixed
        if not m.is_shared:
            owned |= work[m]
        kept.append(m)
    return sorted(kept, key=lambda m: m.root.id)


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule by code: ours, and those of plugins. Raises FuselintError where a plugin can't be taken."""
    found = {r.code: r for r in _discover("fuselint.checks", "fuselint.fixers")}
    for name, package in packages():
        for rule in _of_plugin(name, package):
            other = found.setdefault(rule.code, rule)
            if other is not rule or rule.code in OWN:
                raise FuselintError(f'plugin "{name}": {rule.code} is the code of another rule')
    return tuple(found[code] for code in sorted(found))


def _of_plugin(name: str, package: str) -> tuple[Rule, ...]:
    try:
        made = _discover(f"{package}.checks", f"{package}.fixers")
    except Exception as e:
        raise FuselintError(f'plugin "{name}": {package} can\'t be loaded: {type(e).__name__}: {e}') from e
    for rule in made:
        if not re.fullmatch(r"[A-Z]+[0-9]+", rule.code) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name):
            raise FuselintError(
                f'plugin "{name}": "{rule.code}", "{rule.name}": expected such as ACME101, unfused-thing'
            )
        if rule.code.startswith("FUS"):
            raise FuselintError(f'plugin "{name}": codes that begin with FUS, such as {rule.code}, are fuselint\'s own')
    return made


@cache
def _discover(checks: str, fixers: str) -> tuple[Rule, ...]:
    """The rules of a package of checks, by code, each with its fixer of the same file name."""
    package = import_module(checks)
    fixer_names = {m.name for m in pkgutil.iter_modules(import_module(fixers).__path__)}
    found: dict[str, Rule] = {}
    for name in sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")):
        check = import_module(f"{checks}.{name}")
        fixer = import_module(f"{fixers}.{name}") if name in fixer_names else None
        rule = Rule(
            code=check.CODE,
            name=check.NAME,
            page=inspect.cleandoc(check.__doc__ or ""),
            find=check.find,
            fix=fixer.fix if fixer else None,
            examples=tuple(getattr(check, "EXAMPLES", ())),
            counterexamples=tuple(getattr(check, "COUNTEREXAMPLES", ())),
            check=check,
            fixer=fixer,
            nearly=getattr(check, "nearly", None),
            numbers=tuple(getattr(check, "NUMBERS", ())),
            one_value=getattr(check, "ONE_VALUE", False),
            claims_before=getattr(check, "CLAIMS_BEFORE", ""),
        )
        if rule.code in found:
            raise FuselintError(f"{rule.code} is the code of two rules: {found[rule.code].name} and {rule.name}")
        found[rule.code] = rule
    return tuple(found[code] for code in sorted(found))


@cache
def documented() -> tuple[Rule, ...]:
    """All that can be reported, by code: the rules, and the engine's own findings."""
    modules = map(import_module, OWN.values())
    own = [
        Rule(
            code=m.CODE,
            name=m.NAME,
            page=inspect.cleandoc(m.__doc__ or ""),
            find=lambda graph: iter(()),
            fix=None,
            examples=tuple(getattr(m, "EXAMPLES", ())),
            counterexamples=tuple(getattr(m, "COUNTEREXAMPLES", ())),
            check=m,
            fixer=None,
        )
        for m in modules
    ]
    return tuple(sorted((*own, *rules()), key=lambda r: r.code))


def selectors(chosen: Iterable[str], where: str) -> frozenset[str]:
    """The codes that codes, prefixes of codes, names of rules and ALL stand for."""
    return frozenset(code for text in chosen for code in _selected(text.strip(), where))


def _selected(text: str, where: str) -> dict[str, int]:
    """The codes that one selector stands for, with how exactly it names them."""
    hits = {}
    for code, name in ((r.code, r.name) for r in documented()):
        if text.upper() == "ALL":
            hits[code] = 0
        elif (text and code.startswith(text.upper())) or name == text.lower():
            hits[code] = min(len(text), len(code))
    if not hits:
        known = [word for r in documented() for word in (r.code, r.name)]
        raise ConfigError(f'{where}: no rule "{text}"{nearest(text, known)}')
    return hits


def chosen_codes(settings: Settings, path: str | None = None) -> frozenset[str]:
    """The codes that are on, in a file. Raises ConfigError for a selector that stands for no rule."""
    codes = _layered(selections(settings))
    off = [i for i in settings.per_file_ignores if path is None or covers(i.glob, path)]
    if path is None:  # only to hear of wrong selectors
        for i in off:
            selectors(i.codes, _at(i.where, "per-file-ignores"))
        return codes
    return codes - selectors([c for i in off for c in i.codes], "per-file-ignores") if off else codes


@cache
def _layered(layers: tuple[Selection, ...]) -> frozenset[str]:
    """Layer by layer; within one, the selector that names a code most exactly decides, and to ignore before select."""
    codes = selectors(["ALL"], "")
    for layer in layers:
        if layer.select:
            codes = frozenset()
        more = [(text, _at(layer.where, "extend-select")) for text in layer.extend_select]
        on = _strongest([*((text, _at(layer.where, "select")) for text in layer.select), *more])
        off = _strongest([(text, _at(layer.where, "ignore")) for text in layer.ignore])
        codes |= {code for code, exact in on.items() if exact > off.get(code, -1)}
        codes -= {code for code, exact in off.items() if exact >= on.get(code, -1)}
    return codes


def _at(where: str, key: str) -> str:
    """The place of a list of selectors: an option, or a key of a file."""
    return f"--{key}" if where.startswith("-") else f"{where}: {key}".removeprefix(": ")


def _strongest(chosen: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The codes that selectors stand for, each given with its place, with how exactly the best one names each."""
    out: dict[str, int] = {}
    for text, where in chosen:
        for code, exact in _selected(text.strip(), where).items():
            out[code] = max(exact, out.get(code, 0))
    return out
