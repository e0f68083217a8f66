"""Frozen dataclasses of which an analysis makes hundreds of thousands.

Python's own take three times as long to make as others: each field is set by a call. So these are frozen for whoever
checks types, and for nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen: bool, eq: bool = True, **options: Any) -> Any:
        """As `dataclass(frozen=True)`, with the same equality and hash."""
        assert frozen
        return dataclass(eq=eq, unsafe_hash=eq, **options)


__all__ = ["record"]
