"""What was read of other files for a result: it decides when the result no longer holds.

A leaf is something to be read: a file's text, or what its text says of the rest of the package; whether a path is a
file or a folder; which files of a package hold a word. A question is one about a whole package: its answer is noted
with the leaves that it rests on, so that it holds as long as these are as they were, and a result that asked holds
as long as the answer is.
"""

from __future__ import annotations

from collections.abc import Iterable

KIND, LINKS, NAMES = "kind ", "links of ", "names of "
"""How leaves begin that are about a path: what it is, and what a file's text says, in `facets`. A path alone, which is
absolute and begins like none of them, is its text."""

SUMMARY, OUTLINE, TEXT, CALLS = "summary ", "outline ", "text ", "calls "
"""How leaves begin that are about a unit of a file (`watched`): what the file's summary says of it, with the mentions
in it or without, the text of a function, and what links say of it, all without the lines where it stands."""

SHOWN = "shown "
"""How leaves begin that are about what can be shown of a unit: its text, and the lines where it stands."""

NAMING, RENAMED = "naming ", "renamed "
"""How leaves begin that are about what a file has by some key: the functions whose text a pattern is found in, and what
its imports call something of a name."""

ROUNDS = "rounds "
"""How leaves begin that are about where the rounds of a solver begin in a function, in its own lines."""

MENTIONS = "mentions "
"""How leaves begin that are about a part of the places of a file that read names, with the lines that they have in
their function."""

FILES, IMPORTS, COMPILING, SOLVING, WORD = "files of ", "imports in ", "compiling in ", "solving in ", "word "
"""How leaves begin that are about a package, named by its folder: which Python files it has, what they import, which
may compile something, which have the loop of a solver, which hold a word."""

ANYTHING = "anything"
"""The leaf that any change is one of."""

COMPILED, USERS, READING, PACKAGE = "compiled in ", "users of ", "reading ", "package of "
FREQUENCY, LAYERS, PREPARING = "how often ", "layers", "preparing"
OVERRIDDEN, OTHER_VERSION, HALF = "given otherwise ", "another ", "half precision of "
"""How questions begin."""
ON_METAL = " on Metal"
"""How the part of a question ends that says where code runs."""

OF_FILES = (SUMMARY, OUTLINE, TEXT, CALLS, SHOWN, NAMING, RENAMED, ROUNDS, LINKS, MENTIONS, NAMES)
IN_FOLDERS = (IMPORTS, COMPILING, SOLVING, WORD)
QUESTIONS = (COMPILED, USERS, READING, PACKAGE, FREQUENCY, LAYERS, PREPARING, OVERRIDDEN, OTHER_VERSION, HALF)


def kind_of(path: str, kind: str) -> str:
    """The leaf of what a path is: "file", "folder", or "" for neither."""
    return f"{KIND}{kind} of {path}"


def kind_in(leaf: str) -> tuple[str, str]:
    """The path and the kind of such a leaf."""
    kind, _, path = leaf[len(KIND) :].partition(" of ")
    return path, kind


def mentions_of(path: str, part: str) -> str:
    """The leaf of a part of a file's mentions, as `mentions.Part` calls it."""
    return f"{MENTIONS}{part} of {path}"


def of_file(start: str, what: str, path: str) -> str:
    """The leaf of a unit of a file, or of what a file has by a key."""
    return f"{start}{what} of {path}"


def key_in(leaf: str) -> str:
    """What such a leaf is about."""
    return leaf.partition(" of ")[0].partition(" ")[2]


def word_in(folder: str, word: str) -> str:
    """The leaf of which files of a package hold a word; of one that isn't ASCII, of any change."""
    return f"{WORD}{word} in {folder}" if word.isascii() else ANYTHING


def split(leaf: str) -> tuple[str, str]:
    """How a leaf begins, and the path that it is about: together they are the leaf."""
    if leaf.startswith(IN_FOLDERS):
        start, between, about = leaf.partition(" in ")
    elif leaf.startswith((*OF_FILES, KIND, FILES)):
        start, between, about = leaf.partition(" of ")
    else:
        return "", leaf
    return f"{start}{between}", about


def is_question(note: str) -> bool:
    return note.startswith(QUESTIONS)


def file_of(leaf: str) -> str | None:
    """The file whose text a leaf is about; None where it is about none."""
    if leaf.startswith(OF_FILES):
        return leaf.partition(" of ")[2]
    return None if leaf.startswith((KIND, FILES, *IN_FOLDERS, ANYTHING)) else leaf


def folder_of(leaf: str) -> str | None:
    """The package that a leaf is about; None where it is about none."""
    if leaf.startswith(IN_FOLDERS):
        return leaf.split(" in ", 1)[1]
    return leaf[len(FILES) :] if leaf.startswith(FILES) else None


class Trail:
    """What was read for something that is remembered: leaves, and the trails of what else it rests on."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: set[str | Trail] = set()

    def leaves(self) -> set[str]:
        """The leaves of this and of all that it rests on."""
        out: set[str] = set()
        seen, waiting = {self}, [self]
        while waiting:
            for held in waiting.pop().held:
                if isinstance(held, str):
                    out.add(held)
                elif held not in seen:
                    seen.add(held)
                    waiting.append(held)
        return out

    def flatten(self) -> set[str]:
        """The leaves, which are all that is kept of it from now on: what it rests on can be forgotten."""
        leaves = self.leaves()
        self.held = {*leaves}
        return leaves


class Notes(dict[str, str]):
    """Leaf -> the hash of the file that it is about, "" for another; question -> its answer. basis: the leaves that an
    answer rests on; none for one that was given."""

    def __init__(self) -> None:
        super().__init__()
        self.basis: dict[str, Iterable[str]] = {}

    def of_questions(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The questions whose basis is known, with it, in order."""
        return tuple((question, tuple(sorted(self.basis[question]))) for question in sorted(self.basis))
