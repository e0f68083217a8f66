"""What a fix saves, in words: bytes where something says the sizes, else a share of those that move now, and a formula.

Bytes at the sizes of a typical model rank findings; as a number of this code they would be made up.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuselint.finding import Saved, Traffic
from fuselint.report import percent, size

MOST_NAMES = 3
"""Of sizes that nothing says, in one line."""

LONGEST = 60
"""Of a formula beside a share."""

TYPICAL = "at sizes of a typical model where nothing says any"


def brief(t: Traffic | None) -> str:
    """At most a few words; "" where nothing is saved."""
    if t is None:
        return ""
    if dtype := only_in(t):
        other = t.otherwise.saves if t.otherwise is not None else None
        part = t.saves if dtype == t.dtype else other
        if not t.typical:
            return f"{size(t.most[0])} in {dtype}"
        if part is None or part.share is None:
            return f"{part.bytes} bytes in {dtype}" if part is not None else ""
        return f"{'' if part.exact else 'about '}{_percent(part.share)} in {dtype}"
    if not t.saved_at:
        return ""
    if not t.typical:
        return f"{t.least}{size(t.saved_at)}"
    shares, amount = _shares(t), _formula(t)
    if shares:
        least = "" if len(set(shares)) == 1 else t.least
        return f"{least}{_about(t)}{_percent(min(shares))}"
    return f"{t.least}{amount} bytes" if amount else ""


def only_in(t: Traffic) -> str:
    """The dtype in which bytes are saved, where none are in the other; "" where that is not so."""
    if t.otherwise is None or t.saved_at is None or t.otherwise.saved_at is None or not t.saved_at <= 0 < t.most[0]:
        return ""
    return t.otherwise.dtype if t.otherwise.saved_at > 0 else t.dtype


def in_shares(t: Traffic) -> str:
    """Of a fix for which bytes are no number."""
    if t.saves is None:
        return "saves bytes"
    other = t.otherwise
    if other is None or other.saves is None:
        return _part(t.saves)
    if "0" in (t.saves.bytes, other.saves.bytes) and t.saves.bytes != other.saves.bytes:
        return f"{_part(t.saves, f' in {t.dtype}')}; {_part(other.saves, f' in {other.dtype}')}"
    shares, amount = _shares(t), _formula(t)
    if any(s < 0 for s in shares) or not (shares or amount):
        return f"{_part(t.saves, f' in {t.dtype}')}; {_part(other.saves, f' in {other.dtype}')}"
    if not shares:
        return f"saves at least {amount} of these bytes"
    if amount and not _about(t) and len(set(shares)) == 1:
        return f"saves {_percent(shares[0])} of these bytes" + _besides(shares[0], f"at least {amount}")
    return f"saves at least {_about(t)}{_percent(min(shares))} of these bytes" + _besides(min(shares), amount)


def unsaid(t: Traffic) -> str:
    """Which sizes nothing says, and how to say them."""
    names = t.typical
    ways = [f"--shape {names[0]}=N" if len(names) == 1 else "--shape"]
    ways += ["--model-config"] if "config" not in t.sources.values() else []
    ways += ["a recorded run"] if t.calls is None else []
    return f"nothing says {listed(names)}: {listed(ways)} gives bytes and time"


def listed(names: Sequence[str]) -> str:
    """`D`, `D or H`, `D, H, K or 2 more`."""
    shown = [*names[:MOST_NAMES], *([f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def _part(s: Saved, dtype: str = "") -> str:
    """In one dtype."""
    if s.bytes == "0":
        return f"saves nothing{dtype}"
    if s.share is None:
        return f"saves {s.bytes} of these bytes{dtype}"
    about = "" if s.exact else "about "
    if s.share < 0:
        return f"costs {about}{percent(-s.share)} more bytes{dtype}"
    return f"saves {about}{_percent(s.share)} of these bytes{dtype}" + _besides(s.share, s.bytes)


def _shares(t: Traffic) -> list[float]:
    """In each dtype; none where one of them is unknown."""
    parts = [s for s in (t.saves, t.otherwise.saves if t.otherwise is not None else t.saves) if s is not None]
    shares = [s.share for s in parts if s.share is not None]
    return shares if len(shares) == len(parts) else []


def _about(t: Traffic) -> str:
    parts = (t.saves, t.otherwise.saves if t.otherwise is not None else None)
    return "" if all(s.exact for s in parts if s is not None) else "about "


def _formula(t: Traffic) -> str:
    """Of the smaller saving; "" where the sizes decide which of two that is."""
    if t.saves is None:
        return ""
    if t.otherwise is None or t.otherwise.saves is None:
        return t.saves.bytes
    return "" if t.otherwise.less is None else t.otherwise.saves.bytes if t.otherwise.less else t.saves.bytes


def _besides(share: float, formula: str) -> str:
    """The formula, where it is worth reading beside the share."""
    return f", {formula}" if formula and share < 1 and len(formula) <= LONGEST else ""


def _percent(share: float) -> str:
    """All of it only where nothing is left."""
    return "all" if share == 1 else "more than 99 %" if share >= 0.995 else percent(share)
