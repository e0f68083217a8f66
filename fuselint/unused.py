"""FUS900 unused-suppression: a comment that silences a finding where there is none.

What it does: finds `# noqa: FUS201`, `# fuselint: ignore[FUS201]`, `# fuselint: ignore`, `# fuselint: skip-file`,
`# fuselint: file-ignore[FUS201]` and `# fuselint: off[FUS201]` that silence nothing, `# fuselint: on[FUS201]` that end
nothing, and codes that no rule has.

Why: the code below the comment was fixed or moved. The next finding there, which is another one, stays unseen.

When not to: nothing is said about a rule that isn't selected, or about the codes of other linters: `# noqa` and
`# noqa: E501` are theirs. A finding that only --min-saving or --min-kernels hides is there. In a file where a function
was not understood, comments in that function stay.

Fix safety: safe. Only the comment changes; its reason, and what else it says, stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fuselint.config import nearest
from fuselint.finding import Finding, Fix
from fuselint.rulebook import OWN, UNUSED, Example, documented
from fuselint.source.suppress import Suppression, Suppressions, without
from fuselint.source.text import FileText

CODE, NAME = UNUSED, "unused-suppression"


def unused(
    file: FileText, suppressions: Suppressions, codes: Collection[str], spared: Sequence[range]
) -> Iterator[Finding]:
    """What to report. codes: the selected ones. spared: lines of which not all findings are known."""
    if CODE not in codes or not suppressions.certain or any(s.used for s in suppressions.skips):
        return
    names = {r.name: r.code for r in documented()}
    idle: list[tuple[Suppression, list[str]]] = []
    silencers: list[tuple[Suppression, list[str]]] = []  # what silences the findings of this rule
    for entry, words in suppressions.unused({*names, *names.values()}):
        if suppressions.skips and (spared or entry not in suppressions.skips):
            continue  # nothing else of the file is reported
        if any(lines and entry.reaches(lines[0], lines[-1]) for lines in spared):
            continue
        own = [w for w in words if w not in ("", "ALL") and CODE in _meant(w, names)]
        others = [w for w in words if w not in own and _meant(w, names) <= set(codes)]
        if own:
            silencers.append((entry, own))
        if others:
            idle.append((entry, others))
    reported = [(e, w) for e, w in idle if not any(s.reaches(e.line, e.line) for s, _ in silencers)]
    if _meant("ALL", names) <= set(codes):  # else what they silence may not be selected
        reported += [(s, w) for s, w in silencers if not any(s.reaches(e.line, e.line) for e, _ in idle)]
    for entry, judged in sorted(reported, key=lambda found: found[0].start):
        yield _finding(file, entry, judged, names)


def _meant(word: str, names: dict[str, str]) -> set[str]:
    """The codes that a word stands for; none where no rule has it."""
    if word in ("", "ALL"):
        return set(names.values()) - set(OWN)
    return {code for name, code in names.items() if name == word or code.startswith(word)}


def _finding(file: FileText, entry: Suppression, words: Sequence[str], names: dict[str, str]) -> Finding:
    whole = set(words) >= set(entry.codes)
    unknown = [w for w in words if w and not _meant(w, names)]
    idle = [w for w in words if w not in unknown]
    said = [f"no rule `{w}`{nearest(w, [*names.values(), *names])}" for w in unknown]
    if idle and whole and not unknown:
        said.append(f"`{file.text[entry.start : entry.stop]}` {'ends' if entry.is_end else 'silences'} nothing")
    elif idle:
        verb = "end" if entry.is_end else "silence"
        said.append(f"{' and '.join(f'`{w}`' for w in idle)} {f'{verb}s' if len(idle) == 1 else verb} nothing")
    message = "remove the comment" if whole else f"remove {', '.join(f'`{w}`' for w in words)} from the comment"
    line, column = file.position(entry.start)
    end_line, end_column = file.position(entry.stop)
    fix = Fix("safe", message, (without(file, entry, words),))
    return Finding(CODE, NAME, "; ".join(said), file.path, line, column, end_line, end_column, fix=fix)


HEAD = "import mlx.core as mx\n\n\n"

EXAMPLES = [
    Example(
        HEAD + "def norm(x, w):\n    return mx.fast.rms_norm(x, w, 1e-5)  # noqa: FUS201\n",
        HEAD + "def norm(x, w):\n    return mx.fast.rms_norm(x, w, 1e-5)\n",
    ),
    Example(
        HEAD + "def norm(x, w):  # noqa: E501, FUS201\n    return mx.fast.rms_norm(x, w, 1e-5)\n",
        HEAD + "def norm(x, w):  # noqa: E501\n    return mx.fast.rms_norm(x, w, 1e-5)\n",
        why="the rest of the comment is another linter's",
    ),
    Example(
        HEAD + "def double(x):\n    # fuselint: ignore[FUS777] -- measured\n    return x + x\n",
        HEAD + "def double(x):\n    # measured\n    return x + x\n",
        why="no rule has that code; the reason stays",
    ),
    Example(
        HEAD + "# fuselint: off[FUS201]\ndef double(x):\n    return x + x\n# fuselint: on[FUS201]\n",
        HEAD + "def double(x):\n    return x + x\n",
        why="nothing is found between them",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def norm(x):\n    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)  # noqa: FUS201\n",
        why="it silences a finding",
    ),
    Example(HEAD + "def double(x):\n    return x + x  # noqa\n", why="it may be meant for another linter"),
    Example(HEAD + "def double(x):\n    return x + x  # noqa: E501\n", why="another linter's code"),
    Example(
        HEAD + "def double(x):\n    return x + x  # fuselint: ignore[FUS201, FUS900] -- for a fork of this file\n",
        why="it says that it is to stay",
    ),
]
