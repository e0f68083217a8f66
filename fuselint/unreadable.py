"""FUS000 unreadable-file: a file that can't be analysed.

What it does: reports a file that can't be opened or decoded, isn't Python, or is nested too deeply.

Why: nothing else is known of it. The other files are checked all the same.

When not to: files whose bytes don't name mlx are no business of fuselint, whatever they hold.
"""

from __future__ import annotations

from fuselint.errors import UnreadableFile
from fuselint.finding import UNREADABLE, Finding

CODE, NAME = UNREADABLE, "unreadable-file"


def unreadable(e: UnreadableFile) -> Finding:
    return Finding(CODE, NAME, e.reason, e.path, e.line, e.column, e.line, e.column)
