"""Sizes of arrays as formulas in the names of the user's code, and the numbers that those names stand for.

Where an array's rank is unknown it has T rows of its last axis; the last axis of such arrays prints as D.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce

from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Apply, Expr, product
from fuselint.graph.tape import Array
from fuselint.traffic.apart import Apart, Operand, base
from fuselint.traffic.known import BY_RANK, HEADED, IMAGE, LETTER_OF, LETTERS, Known, Number, least_sure, role

ROWS, FEATURES, BATCH, HEADS, LENGTH = "T", "D", "B", "H", "L"

ANY_LETTER = "NMKPQRUVW"

SPLIT = 2
"""Axes that an array's last one was split into."""
HEADED_RANK = 4
"""Of what attention computes with: a batch of heads."""

MOST_EQUAL = 16
"""Sizes that one is equal to by way of others, of which one with a number is looked for."""

NEGLIGIBLE = 1000
"""A term this many times smaller than one that contains it isn't worth printing."""

TOGETHER: dict[frozenset[str], str] = {
    frozenset({"H", "W"}): "side", frozenset({"h", "w"}): "side", frozenset({"height", "width"}): "side",
    frozenset({"K", "V"}): "head", frozenset({"Dk", "Dv"}): "head", frozenset({"dk", "dv"}): "head",
}  # fmt: skip
"""What two names stand for in one shape: sides of an image, and widths of keys and values in a recurrent state."""

Pair = tuple[Expr, Expr]


@dataclass(slots=True)
class Sizes:
    """The sizes of one region: made of all its shapes, so that one axis has one name."""

    whole: frozenset[str] = frozenset()  # arrays each element of which is a row of another: tokens
    rows: str = ""  # whose rows T counts, where some rank is unknown
    features: Expr | None = None  # what D stands for, where the code names it
    renamed: dict[str, Expr] = field(default_factory=dict)
    clearer: dict[Expr, Expr] = field(default_factory=dict)  # sizes that aren't one name, and what they are equal to
    roles: dict[str, str] = field(default_factory=dict)
    meanings: dict[str, Expr] = field(default_factory=dict)  # of names that aren't the code's own
    same: list[Pair] = field(default_factory=list)  # sizes that are equal, because arrays meet there
    apart: Apart | None = None  # operands of unknown shape with a size of their own
    ranks: dict[str, int] = field(default_factory=dict)  # axes that arrays of unknown rank have at least
    split: dict[str, Expr] = field(default_factory=dict)  # last axes that are parted, and the product of the parts
    positions: frozenset[str] = frozenset()  # first axes of tables that all heads share: `cos[:, None, :]`
    contracted: frozenset[Expr] = frozenset()  # last axes that products sum over: another width than that of results

    @classmethod
    def of(
        cls,
        shapes: Iterable[Shape | None],
        equal: Iterable[tuple[Shape | None, Shape | None]] = (),
        same: Iterable[Pair] = (),
        summed: Iterable[Pair] = (),
        apart: Apart | None = None,
        spelled: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        ranks: Mapping[str, int] | None = None,
        split: Mapping[str, Expr] | None = None,
        tables: Iterable[Shape] = (),
        masks: Iterable[tuple[Shape | None, Shape | None]] = (),
    ) -> Sizes:
        """`equal`: shapes of operands and results of elementwise operations, whose axes are the same ones.
        `summed`: the last axis of what is multiplied by a matrix, and what the matrix calls it.
        `spelled`: how the code spells sizes that it gives no name. `roles`: what sizes are for, where it is said
        elsewhere; `ranks`: how many axes arrays have there. `split`: last axes that are several in one, and those.
        `tables`: shapes of tables of angles. `masks`: those of what selects by element, and of what is selected.
        """
        out = cls(same=list(same), apart=apart, ranks=dict(ranks or {}), split=dict(split or {}))
        out.renamed.update((name, Expr.name(text)) for name, text in (spelled or {}).items())
        out.renamed.update(out.split)
        shapes = list(shapes)
        out._name_differences(shapes)
        for operand, result in equal:
            out._equate(operand, result)
        out._note_contracted(summed)
        listed = [None if s is None else out._renamed(s) for s in shapes]
        positions = (s for s in map(out._renamed, tables) if s.rank == 3 and s.dims[1] == 1)
        out.positions = frozenset(str(s.dims[0]) for s in positions)
        out._note_whole(listed)
        ordinary = [s for s in listed if out._apart(s) is None]
        free = [s for s in ordinary if s is None or s.lead is not None]
        if free:
            out._name_rows(free, ordinary, masks)
        for _ in out.renamed:  # a size may be called after one that is called after another
            out.renamed, before = {n: size.substitute(out.renamed) for n, size in out.renamed.items()}, out.renamed
            if out.renamed == before:
                break
        out._note_outer_axes_apart(listed)
        names = {n for s in shapes if s is not None for d in s.dims for n in d.names}
        out.roles.update((n, role) for n, role in (roles or {}).items() if n in names or "[-" in n)
        out._note_last_axes_of_heads()
        out._note_pairs([{n for d in s.dims for n in d.names} for s in listed if s is not None])
        out._note_all_roles(listed)
        out._letter()
        return out

    @classmethod
    def plain(cls, shapes: Iterable[Shape | None], same: Iterable[Pair] = (), letters: bool = False) -> Sizes:
        """Of a whole function, where many axes end arrays: every name stays its own. letters: or gets one of its own,
        where the code has none for it."""
        out = cls(rows="", same=list(same))
        out.roles[ROWS] = "rows"
        listed = list(shapes)
        out._note_whole(listed)
        if letters:
            out._name_last_axes(listed)
        out._note_all_roles(listed)
        if letters:
            out._letter()
        return out

    def _name_last_axes(self, shapes: Sequence[Shape | None]) -> None:
        """D is the last axis of what has T rows, and what the code calls it where it meets a size of the code. Of
        another such array the last axis is the size that it meets, or D too."""
        pairs = [(a, b) for pair in self.same for a, b in (pair, pair[::-1])]
        for shape in shapes:
            last = None if shape is None or not shape.lead or shape.dims else shape.axis(-1)
            if last is None or ".shape[" not in str(last) or str(last) in self.renamed:
                continue
            broadcast = (d for s in shapes if s is not None for d in s.dims if d != last and str(last) in d.names)
            sizes = map(_likeliest, (*(b for a, b in pairs if a == last), *broadcast))
            met = next((b for b in sizes if str(b) in b.names and not _obscurity(b)), None)
            if met is not None and FEATURES not in self.roles:
                self.renamed[str(met)] = Expr.name(FEATURES)
                self.meanings[FEATURES] = met
            is_other = met is not None and str(met) not in self.renamed
            self.renamed[str(last)] = met if met is not None and is_other else Expr.name(FEATURES)
            self.roles[FEATURES] = "features"

    def _equate(self, operand: Shape | None, result: Shape | None) -> None:
        """`scale.shape[1]` of `x * scale` is what x's axis is called."""
        if operand is None or result is None:
            return
        for free, fixed in ((operand, result), (result, operand)):
            is_vector = free is result and fixed.dims[-1:] == (Expr.of(1),)
            if free.lead is not None and fixed.lead is None and not is_vector:
                rank = len(fixed.dims) - len(free.dims) + _cut_off(free)
                self.ranks[base(free.lead)] = max(rank, self.ranks.get(base(free.lead), 0))
        for a, b in aligned(operand, result):
            if a != b and 1 not in (a, b):
                self._equate_sizes(_likeliest(a), _likeliest(b))

    def _equate_sizes(self, a: Expr, b: Expr) -> None:
        """a: of an operand, b: of the result. A name that isn't the code's own goes, rather that of a part."""
        if str(a) in self.renamed:
            return
        for part, whole in ((a, b), (b, a)):
            if part.bare is not None or ".shape[" not in str(part):
                continue
            if not _obscurity(whole):
                self.clearer.setdefault(part, whole)
                return
            solved = _solved(part, whole)
            repeated = all(isinstance(a, str) for m, _ in part.terms for a, _ in m)  # `mx.tile(cos, 2)`
            if solved is None or not (repeated or whole.bare is None or self._is_of_result(whole)):
                continue
            if not self.renamed.keys() & {solved[0], *whole.names}:
                self.renamed[solved[0]] = solved[1]
                return
        own = self._named(b)
        if a.bare is not None and ".shape[" in a.bare and a.bare not in own.names:
            self.renamed[a.bare] = own
        elif a.bare is None and a.value() is None and b.bare is not None and ".shape[" in b.bare:
            self.clearer.setdefault(a, b)  # `2 * (n // 2)` beside `x.shape[-1]`

    def _is_of_result(self, size: Expr) -> bool:
        """Whether it is an axis of what the region's result has the shape of."""
        like = None if self.apart is None else self.apart.like
        return like is not None and like.lead is not None and str(size).startswith(f"{base(like.lead)}.shape[")

    def _note_contracted(self, summed: Iterable[Pair]) -> None:
        for last, own in summed:
            name = str(last)
            if own.value() is None and ".shape[" not in str(own) and not any(n.startswith("%") for n in own.names):
                self.contracted |= {own}
                if ".shape[" in name and last == Expr.name(name):
                    self.renamed.setdefault(name, own)

    def _name_differences(self, shapes: Iterable[Shape | None]) -> None:
        """`n - 1`, and the length after a convolution, get a letter of their own."""
        found = {d for s in shapes if s is not None for d in s.dims if _subtracts(d)}
        for d in sorted(found, key=lambda d: (len(list(d.terms)), str(d))):
            part = next((p for p in self.clearer if _times(d, p) is not None), d)
            if part is d:
                self.clearer[d] = Expr.name(f"%({d})")
                self.meanings[f"%({d})"] = d
            else:
                self.clearer[d] = self.clearer[part] * (_times(d, part) or 1)

    def _note_whole(self, shapes: Iterable[Shape | None]) -> None:
        self.whole = frozenset(s.lead for s in shapes if s is not None and s.lead and s.dims and s.lead[-1] != "]")

    def _renamed(self, shape: Shape) -> Shape:
        return Shape(shape.lead, tuple(map(self._named, shape.dims)))

    def _named(self, size: Expr) -> Expr:
        return self.clearer.get(size, _likeliest(size)).substitute(self.renamed)

    def _name_rows(
        self,
        free: list[Shape | None],
        listed: list[Shape | None],
        masks: Iterable[tuple[Shape | None, Shape | None]],
    ) -> None:
        first = next((s.lead for s in free if s is not None and s.lead is not None), "")
        self.rows = (first or "").split("[", 1)[0].split(" & ", 1)[0]
        lasts = [a for s in listed if s is not None and (a := s.axis(-1)) is not None and (s.lead or _is_vector(s))]
        named = [a for a in lasts if a.value() is None and self._named(a) not in self.contracted]
        named = [a for a in named if not self._is_outer_axis_apart(str(a)) and str(a) not in self.split]
        stated = [a for a in named if ".shape[" not in str(a)]
        # An axis of the code's own (a weight's size) says more than `x.shape[-1]`; a number says most.
        number = next((a for a in lasts if (a.value() or 0) > 1), None)
        self.features = number or next(iter(stated), None)
        masked = self._masked(masks) if self.features is None and all(a.bare for a in named) else None
        if masked is not None:
            self.renamed[FEATURES] = masked
        last = number or masked or Expr.name(FEATURES)
        for own in dict.fromkeys(size.bare for a in named for size in (a, self._named(a))):
            if own is not None:
                self.renamed[own] = last
        self._name_outer_axes(listed)
        self.roles[ROWS] = "rows"
        if number is None and masked is None:
            self.roles[FEATURES] = "features"
            if self.ranks.get(self.rows, 0) >= HEADED_RANK or self.positions:
                self.roles |= {ROWS: "head rows", FEATURES: "head"}
                if self.features is not None and self.features.bare is not None:
                    self.roles[self.features.bare] = "head"
            if self.features is not None and FEATURES not in self.features.names:
                self.meanings[FEATURES] = self.features

    def _masked(self, masks: Iterable[tuple[Shape | None, Shape | None]]) -> Expr | None:
        """The last axis of a mask of several axes on arrays of unknown rank: that of theirs too, such as scores'."""
        for mask, result in masks:
            is_ours = result is None or (result.lead is not None and not result.dims and base(result.lead) == self.rows)
            if is_ours and mask is not None and mask.lead is None and len(mask.dims) > 1 and mask.dims[-1] != 1:
                return self._named(mask.dims[-1])
        return None

    def _name_outer_axes(self, listed: list[Shape | None]) -> None:
        """`x.shape[-3]` of an x of unknown rank is its batch, `x.shape[-2]` its length; of four axes, the third of
        them from the end is the heads, or a length where the second is 1."""
        depths: dict[str, dict[int, str]] = {}
        firsts = {str(s.dims[0]) for s in listed if s is not None and s.rank == 3 and s.dims[1] == 1}  # `x[:, None]`
        for name in sorted({n for s in listed if s is not None for d in s.dims for n in d.names}):
            outer = re.fullmatch(r"(.*)\.shape\[-([2-9])\]", name)
            if outer is not None:
                depths.setdefault(outer.group(1), {})[int(outer.group(2))] = name
        for array, named in depths.items():
            deepest = max(*named, self.ranks.get(array, 0))
            for depth, name in named.items():
                letter = LENGTH if depth == min(named) and depth < max(deepest, 3) else HEADS
                is_batch = (depth == max(deepest, 3) or name in firsts) and name not in self.positions
                letter = LENGTH if name in self.positions else letter
                self.renamed.setdefault(name, Expr.name(BATCH if is_batch else letter))

    def _note_last_axes_of_heads(self) -> None:
        """Of an array with four axes, which the code doesn't name, the last is one of attention's heads."""
        heads = (f"{base}.shape[-1]" for base, rank in self.ranks.items() if rank >= HEADED_RANK)
        self.roles.update((name, "head") for name in heads if name not in self.renamed)

    def _note_pairs(self, shapes: Sequence[Set[str]]) -> None:
        """H is the height of an image where W stands beside it, and no number of heads."""
        for pair, what in TOGETHER.items():
            if any(names >= pair for names in shapes):
                self.roles.update(dict.fromkeys(pair, what))

    def _note_outer_axes_apart(self, shapes: Iterable[Shape | None]) -> None:
        """Nothing says how long an axis is that only a table or a weight of unknown shape has: it counts as little."""
        for name in sorted({n for s in shapes if s is not None for d in s.dims for n in d.names}):
            if self._is_outer_axis_apart(name):
                self.roles[name] = "other"

    def _is_outer_axis_apart(self, name: str) -> bool:
        outer = re.fullmatch(r"(.*)\.shape\[-[2-9]\]", name)
        own = self.apart.operands.get(outer.group(1)) if outer is not None and self.apart is not None else None
        return own is not None and own.use != "activation"

    def _note_all_roles(self, shapes: Iterable[Shape | None]) -> None:
        known = [s for s in shapes if s is not None]
        for shape in known:
            self._note_widths_of_heads(shape)  # wherever else they stand
        for shape in known:
            self._note_roles(shape)

    def _note_roles(self, shape: Shape) -> None:
        dims = shape.dims
        self._note_heads(shape)
        if len(dims) == 3 and shape.lead is None and str(dims[1].substitute(self.renamed)) in ("S", "T"):
            self.roles[str(dims[1].substitute(self.renamed))] = "length"  # of `B, T, C = x.shape`
        if len(dims) == 4 and shape.lead is None and str(dims[2]) == "h" and str(dims[3]) != "w":
            self.roles.setdefault("h", "heads")  # of `b, t, h, d = x.shape`
        if len(dims) >= HEADED_RANK and shape.lead is None and self._role(str(dims[-2])) in ("heads", "kv_heads"):
            named = str(dims[-3])
            self.roles.setdefault(named, "length" if ".shape[" in named else role(named, "length"))
        if len(dims) == 4 and shape.lead is None and (role(str(dims[1])), role(str(dims[3]))) == ("length", "head"):
            self.roles.setdefault(str(dims[2]), "heads")  # of (batch, length, n, head_dim)
        places = BY_RANK.get(len(dims) if shape.lead is None else 3, ())
        if len(dims) == 4 and _is_image(dims):
            places = IMAGE
        if len(dims) == SPLIT and (shape.lead or "").endswith("[:-1]"):
            places = ("group", "features")  # the last axis of what had rows
        if shape.lead is None and places[:1] == ("batch",) and _is_rest(dims):
            self.roles.setdefault(str(dims[0]), "rows")
        places = ("other",) * (len(dims) - len(places)) + places[-len(dims) :] if dims else ()
        for d, place in zip(dims, places, strict=True):
            size = d.substitute(self.renamed)
            alone = len(size.names) == 1 and len(list(size.terms)) == 1  # `2 * width` is a width, too
            grid = len(size.names) == 2 and place in ("length", "rows") and len(list(size.terms)) == 1
            if grid and "batch" in map(role, size.names):
                alone, grid = True, False  # a length of each of a batch
            for name in sorted(size.names):  # letters are given in this order
                self.roles.setdefault(name, role(name, place if alone else "side" if grid else "other"))

    def _note_widths_of_heads(self, shape: Shape) -> None:
        """`k_dim` and `v_dim` of (batch, heads, k_dim, v_dim) are no widths of the model."""
        roles = [role(next(iter(d.names))) if len(d.names) == 1 else "" for d in shape.dims]
        at = (
            roles.index("heads")
            if shape.lead is None and len(roles) >= HEADED_RANK and "heads" in roles
            else len(roles)
        )
        for d, said in zip(shape.dims[at:], roles[at:], strict=True):
            if said == "features":
                self.roles.setdefault(next(iter(d.names)), "head")

    def _note_heads(self, shape: Shape) -> None:
        """`(y.shape[0], L, y.shape[1], y.shape[3])`: beside a length, the inner axis of another array is its heads."""
        dims = [str(d).strip("()") for d in shape.dims]
        if shape.lead is not None or len(dims) != 4 or not any(role(d) == "length" for d in dims if ".shape[" not in d):
            return
        for name in dims[1:3]:
            if re.search(r"\.shape\[[12]\]$", name):
                self.roles.setdefault(name, "heads")

    def _letter(self) -> None:
        """`x.shape[0]` prints as B, if nothing else is called so."""
        taken = {n for n in self.roles if ".shape[" not in n}
        for name, what in list(self.roles.items()):
            letters = LETTER_OF.get(what, "") + ANY_LETTER
            letter = next((x for x in letters if x not in taken), "")
            if not letter or (".shape[" not in name and not name.startswith("%")):
                continue
            taken.add(letter)
            self.renamed = {n: size.substitute({name: Expr.name(letter)}) for n, size in self.renamed.items()}
            self.renamed[name] = Expr.name(letter)
            if name in self.meanings:
                self.meanings[letter] = self.meanings.pop(name)
            elif not name.startswith("%"):
                self.meanings[letter] = Expr.name(name)
            self.roles[letter] = what

    # -- counting -----------------------------------------------------------------------------------------------------

    def elements_of(self, array: Array) -> Expr:
        """Those that an array holds."""
        if self.apart is None:
            return self.elements(array.shape)
        measure = self.apart.of(array)
        own = measure.own
        count = self.elements(measure.shape) if own is None else self._own_elements(own, measure.shape)
        return count if measure.parts == 1 else count // measure.parts

    def _apart(self, shape: Shape | None) -> Operand | None:
        return None if self.apart is None else self.apart.of_shape(shape)

    def _own_elements(self, own: Operand, shape: Shape | None) -> Expr:
        """All of an operand of unknown shape, or what its last axes were made."""
        if shape is None or shape == own.shape or not shape.dims:
            return own.size
        gone = product(self._named(Expr.name(f"{own.lead}.shape[{-i}]")) for i in range(1, _cut_off(shape) + 1))
        if own.shape is not None and own.shape.lead == shape.lead:
            gone = product(map(self._named, own.shape.dims))
        dims = product(map(self._named, shape.dims))
        return own.size * dims / gone if gone.divides(dims) else own.size // gone * dims

    def elements(self, shape: Shape | None) -> Expr:
        own = self._apart(shape)
        if own is not None:
            return self._own_elements(own, shape)
        if shape is None:
            return Expr.name(ROWS) * self._last(None)
        count = product(map(self._named, shape.dims))
        if shape.lead is None:
            return count
        if len(shape.dims) > 1 and not shape.lead.endswith("[:-1]"):
            if all(d == 1 for d in shape.dims[:-1]):
                return Expr.name(LENGTH) * count  # of the heads of a token
            length, *rest = map(self._named, shape.dims)
            if length == Expr.name(LENGTH) and len(rest) == 1 and rest[0] != length:
                return Expr.name(ROWS) * rest[0]  # the rows of a batch are its rows
            return Expr.name(BATCH) * count
        if shape.lead.endswith("]") or shape.dims or shape.lead in self.whole:
            return Expr.name(ROWS) * count
        return Expr.name(ROWS) * self._last(shape)

    def _last(self, shape: Shape | None) -> Expr:
        last = shape.axis(-1) if shape is not None else None
        if last is not None:
            return self._named(last)
        return self.renamed.get(FEATURES, Expr.name(FEATURES)) if self.features is None else self._feature()

    def _feature(self) -> Expr:
        assert self.features is not None
        return self.features if self.features.value() is not None else Expr.name(FEATURES)

    # -- saying -------------------------------------------------------------------------------------------------------

    def meaning(self, name: str) -> str:
        """What a name stands for, in the code's own words where it has them."""
        if name in self.meanings:
            said = self.meanings[name]
            said = said.substitute({n: size for n, size in self.meanings.items() if n in said.names and n != name})
            return name if "%" in str(said) else str(said)
        whose = self.rows if self.rows.isidentifier() else "an activation"
        if name == ROWS and self.roles.get(ROWS) in ("rows", "head rows") and self.rows != "":
            return f"rows of {whose}"
        if name == FEATURES and self.rows and self.features is None:
            return f"last axis of {whose}"
        return name

    def leading(self, formula: Expr) -> Expr:
        """The formula without terms that another contains and outweighs. Rows are rows of each of a batch."""
        formula = reduced(formula)
        sizes = {n: self.number(n, Known())[0] for n in formula.names}
        terms = [(m, c, Expr({m: -c if c < 0 else c})) for m, c in formula.terms]

        def outweighs(large: Expr, small: Expr) -> bool:
            spread = {ROWS: Expr.name(BATCH) * Expr.name(ROWS)}
            whole = Expr({m: 1 for m, _ in large.substitute(spread).terms})
            part = Expr({m: 1 for m, _ in small.terms})
            ratio = Fraction(large.substitute(sizes).value() or 0, small.substitute(sizes).value() or 1)
            return ratio >= NEGLIGIBLE and part.divides(whole)

        kept = {m: c for m, c, term in terms if not any(outweighs(o, term) for n, _, o in terms if n != m)}
        return Expr(kept)

    # -- numbers ------------------------------------------------------------------------------------------------------

    def number(self, name: str, known: Known, within: frozenset[str] = frozenset()) -> Number:
        """The number that a name stands for, and where it comes from. within: names that are made of this one."""
        meaning = self.meanings.get(name)
        said = known.number(name)
        if said is not None and said[1] == "recorded" and meaning is not None and name not in meaning.names:
            said = None  # the code calls something else so
        said = said or known.likely(name) or self._given(name, known) or self._met(name, known)
        said = said or self._of_operand(name, known, within)
        if said is not None:
            return said
        what = LETTERS.get(name, name)  # a rule's axis is called by its letter, or by what it is for
        if meaning is not None and what in (*HEADED, "pairs", "keys") and ".shape[" in str(meaning):
            # The rule knows what the axis is for, the code has no name for it.
            return _evaluated(meaning, known) or known.of_role(what)
        pairs = self._of_pairs(name, known)
        if pairs is not None:
            return pairs
        if meaning is not None and meaning.names.isdisjoint(within | {name}):
            found = self._meant(meaning, known, within | {name})
            if found is None and self._role(name) == "batch" and len(meaning.names) > 1:
                return known.of_role("batch")[0], "typical"  # of each of a batch several: windows, or groups of rows
            return found or known.of_role(self._role(name))
        return known.of_role(self._role(name))

    def _given(self, name: str, known: Known) -> Number | None:
        """The last axis and the rows of an array of unknown rank, of which all calls give as many heads as wide."""
        last, own = f"{self.rows}.shape[-1]", self.features.names if self.features is not None else ()
        if name == FEATURES and (self.features is None or last in self.renamed) and not any(map(known.likely, own)):
            return known.likely(last)
        if name != ROWS or self.roles.get(ROWS) != "head rows" or known.number(ROWS) is not None:
            return None
        heads = [n for i in (2, 3) if (n := known.likely(f"{self.rows}.shape[-{i}]")) is not None]
        tokens, source = known.of_role("rows")
        return (heads[0][0] * tokens, least_sure(("assumed", source))) if len(heads) == 1 else None

    def _of_operand(self, name: str, known: Known, within: frozenset[str]) -> Number | None:
        """The elements of an operand of unknown shape, by what it is for."""
        held = () if self.apart is None else self.apart.operands.values()
        own = next((o for o in held if name in o.size.names), None)
        if own is None or self.apart is None:
            return None
        if own.use == "number":
            return 1, "assumed"
        if own.use == "vector":
            width, source = self._widths(self.apart.like, known, within | {name})
            return width, least_sure(("assumed", source))
        if own.use == "table":
            (length, of_length), (pairs, of_pairs) = known.of_role("length"), known.of_role("pairs")
            return length * pairs, least_sure(("assumed", of_length, of_pairs))
        like = self.elements(self.apart.like) if self._apart(self.apart.like) is None else self.elements(None)
        if own.shape is not None and any(d == 1 for d in own.shape.dims):
            dims = product(map(self._named, own.shape.dims))
            last = self._last(None if self._apart(self.apart.like) is not None else self.apart.like)
            # A number for each row, or what the axes that are known hold.
            like = like // last if len(own.shape.dims) == 1 else Expr.name(BATCH) * dims
        parts = {n: self.number(n, known, within | {name}) for n in like.names - within - {name}}
        value = like.substitute({n: number for n, (number, _) in parts.items()}).value()
        return value or 1, least_sure(("assumed", *(source for _, source in parts.values())))

    def _widths(self, like: Shape | None, known: Known, within: frozenset[str]) -> Number:
        """The features of a result, or where its last axis is no width of the model, those of one."""
        last = self._last(None if self._apart(like) is not None else like)
        parts = {n: self.number(n, known, within) for n in last.names - within}
        roles = {self._role(n) for n in last.names}
        found = last.substitute({n: number for n, (number, _) in parts.items()}).value()
        if roles <= {"features"} and found is not None and found > 1:
            return found, least_sure(source for _, source in parts.values())
        return known.of_role("features")

    def _of_pairs(self, name: str, known: Known) -> Number | None:
        """Pairs of a rotation, and the width that they are half of: of a head, whatever the code calls it."""
        letter = next((n for n in self.meanings if LETTERS.get(n) == "pairs"), "")
        size = self.meanings.get(letter)
        alone = next(iter(size.names)) if size is not None and len(size.names) == 1 else ""
        if (
            size is None
            or not alone
            or ".shape[" in alone
            or self._role(alone) != "features"
            or known.number(alone) is not None
        ):
            return None
        pairs, said = known.of_role("pairs")
        source = least_sure(("assumed", said))
        return (pairs, source) if name == letter else (2 * pairs, source) if name == alone else None

    def _role(self, name: str) -> str:
        return self.roles.get(name) or role(name)

    def use(self, name: str) -> str:
        """What a size is for, by its own name or that of what it means."""
        meaning = self.meanings.get(name)
        return self._role(name if meaning is None or meaning.bare is None else meaning.bare)

    def _meant(self, meaning: Expr, known: Known, within: frozenset[str]) -> Number | None:
        """The number of what a name means, itself made of names."""
        if any(known.likely(n) is None and self._role(n) == "other" for n in meaning.names):
            return None
        parts = {n: self.number(n, known, within) for n in meaning.names}
        value = meaning.substitute({n: number for n, (number, _) in parts.items()}).value()
        if value is None or value < 1:
            return None
        source = least_sure(source for _, source in parts.values())
        guessed = _subtracts(meaning) and any(known.likely(n) is None for n in meaning.names)
        return value, "typical" if guessed and source == "assumed" else source

    def _met(self, name: str, known: Known) -> Number | None:
        """The number of a size that it is equal to, because arrays meet there, or because both meet a third."""
        pairs = [(self._named(a), b) for pair in self.same for a, b in (pair, pair[::-1])]
        equal = [Expr.name(name)]
        for size in equal:
            for mine, other in pairs:
                solved = None if mine == size else _solved(mine, other)
                if mine != size and (solved is None or solved[0] != size.bare):
                    continue
                met = other if solved is None else solved[1]
                if (found := _evaluated(met, known)) is not None:
                    return found
                named = self._named(met)
                equal += [named] if named not in equal and len(equal) < MOST_EQUAL else []
        return None

    def numbers(self, formula: Expr, known: Known) -> dict[str, Number]:
        """A number for each name of the formula, and where it comes from."""
        return {name: self.number(name, known) for name in sorted(formula.names)}


def aligned(a: Shape, b: Shape) -> Iterator[Pair]:
    """The axes of an operand that are known, and those of a result above them, from the last."""
    count = max(len(a.dims), int(a.certain(1)))
    yield from zip(reversed(a.tail(count) or ()), reversed(b.tail(count) or ()), strict=False)


def _solved(size: Expr, other: Expr) -> tuple[str, Expr] | None:
    """The one name of a size, and what it is where the size is equal to another: n // 2 is m where n is 2 * m."""
    name = next(iter(size.names)) if len(size.names) == 1 else ""
    if not name or name in other.names or len(size.terms) != 1:
        return None
    ((monomial, coefficient),) = size.terms
    ((atom, power), *more) = monomial
    if more or power != 1:
        return None
    if isinstance(atom, str):
        return name, other / Expr.of(coefficient)
    above, below = atom.args if atom.function == "//" else (size, size)
    return None if below.value() is None else _solved(above, other * below / Expr.of(coefficient))


def _subtracts(size: Expr) -> bool:
    """Whether a size that isn't a number has a term below 0, or a rounded part of it has."""
    if size.value() is not None:
        return False
    if any(coefficient < 0 for _, coefficient in size.terms):
        return True
    atoms = (a for monomial, _ in size.terms for a, _ in monomial)
    return any(_subtracts(e) for a in atoms if isinstance(a, Apply) and a.function == "//" for e in a.args)


def _times(size: Expr, part: Expr) -> Expr | None:
    """The names that a size is a part times: of a batch flattened into a length."""
    others = sorted(size.names - part.names)
    times = product(map(Expr.name, others))
    return times if others and part * times == size else None


def _is_rest(dims: Sequence[Expr]) -> bool:
    """Whether a first axis that the code has no name for is what numbers leave of an array: `y.reshape(-1, 4, 64)`."""
    return re.fullmatch(r"%\d+\.shape\[0\]", str(dims[0])) is not None and all(d.value() for d in dims[1:])


def _is_image(dims: Sequence[Expr]) -> bool:
    """Whether four axes are those of an image: the last has a name that says channels, those before it have none."""
    last = next(iter(dims[3].names), ".shape[-1]")
    return (
        ".shape[" not in last and role(last) == "features" and all(".shape[" in n for d in dims[1:3] for n in d.names)
    )


def _cut_off(shape: Shape) -> int:
    """How many last axes of the array that a shape is named after stand no more in it."""
    cut = re.search(r"\[:-(\d+)\]$", shape.lead or "")
    return int(cut.group(1)) if cut else 0


def _is_vector(shape: Shape) -> bool:
    """Of one axis, which is not said to be an inner one of another array: positions, of as many as `x.shape[1]`."""
    return shape.rank == 1 and re.search(r"\.shape\[[1-9]\]", str(shape.axis(-1))) is None


def is_obscure(size: Expr) -> bool:
    """Whether the code has no name for some part of a size."""
    return any(_obscurity(Expr.name(n)) for n in size.names)


def _obscurity(size: Expr) -> int:
    """How far a size is from a name of the code: `x.shape[0]`, then `mask.shape[-4]`, then one without any name."""
    text = str(size)
    return 3 if "%" in text else 2 if ".shape[-" in text else 1 if ".shape[" in text else 0


def _likeliest(size: Expr) -> Expr:
    """Where axes broadcast, the one that the code has a name for: sizes that meet are equal, or one of them is 1."""
    larger = {a for m, _ in size.terms for a, _ in m if isinstance(a, Apply) and a.function == "max"}
    if not larger:
        return size
    total = Expr({})
    for monomial, coefficient in size.terms:
        term = Expr.of(coefficient)
        for atom, power in monomial:
            stands = Expr({((atom, 1),): 1})
            if atom in larger and isinstance(atom, Apply):
                named = [e for e in atom.args if not _obscurity(e)]
                stands = reduce(Expr.max, named) if named else min(atom.args, key=_obscurity)
            term = term * stands**power
        total = total + term
    return total


def _evaluated(size: Expr, known: Known) -> Number | None:
    """A size all of whose names are said."""
    said = {n: known.likely(n) for n in size.names}
    if None in said.values():
        return None
    value = size.substitute({n: s[0] for n, s in said.items() if s is not None}).value()
    if value is None or value < 1:
        return None
    return value, least_sure(s[1] for s in said.values() if s is not None)


def reduced(formula: Expr) -> Expr:
    """`n*(m//n)` is m: counts of heads divide each other."""
    total = Expr({})
    for monomial, coefficient in formula.terms:
        powers = dict(monomial)
        term = Expr.of(coefficient)
        for atom in [a for a in powers if isinstance(a, Apply) and a.function == "//"]:
            above, below = atom.args
            below_names = below.terms
            if len(below_names) != 1 or below_names[0][1] != 1:
                continue
            need = dict(below_names[0][0])
            if all(powers.get(a, 0) >= n for a, n in need.items()):
                powers[atom] -= 1
                for a, n in need.items():
                    powers[a] -= n
                term = term * above
        left = tuple((a, n) for a, n in monomial if powers[a] > 0)
        kept = Expr({tuple((a, powers[a]) for a, _ in left): 1})
        total = total + term * kept
    return total
