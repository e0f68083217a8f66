"""The language server, over stdio, with pygls's own client."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fuselint.finding import Edit
from fuselint.source.edit import apply
from support import NORM, PLAIN

pytest.importorskip("pygls")

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

pytestmark = pytest.mark.slow

UNSAFE = "import mlx.core as mx\n\n\ndef loud(x, y):\n    '''é😀'''; return mx.exp(x * y) + mx.sin(x)\n"


class Editor:
    """A client with one open document, and what the server tells it."""

    def __init__(self, client: LanguageClient, path: Path) -> None:
        self.client, self.path, self.uri = client, path, path.as_uri()
        self.version = 0
        self.text = ""
        self.published: list[lsp.PublishDiagnosticsParams] = []
        self.messages: list[str] = []
        self.news = asyncio.Event()

    async def diagnostics(self, version: int | None = None) -> list[lsp.Diagnostic]:
        """Those of a version of the text, when they come."""
        wanted = self.version if version is None else version
        while not any(p.version == wanted for p in self.published):
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 60)
        return list(next(p for p in reversed(self.published) if p.version == wanted).diagnostics)

    def open(self, text: str) -> None:
        self.version, self.text = 1, text
        document = lsp.TextDocumentItem(self.uri, "python", 1, text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))

    def change(self, text: str) -> None:
        self.version, self.text = self.version + 1, text
        document = lsp.VersionedTextDocumentIdentifier(uri=self.uri, version=self.version)
        whole = lsp.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [whole]))

    async def actions(self, where: lsp.Range, *only: str) -> list[lsp.CodeAction]:
        document = lsp.TextDocumentIdentifier(self.uri)
        params = lsp.CodeActionParams(document, where, lsp.CodeActionContext([], only=list(only) or None))
        found = await self.client.text_document_code_action_async(params)
        return [a for a in found or () if isinstance(a, lsp.CodeAction)]

    def applied(self, edit: lsp.WorkspaceEdit | None) -> str:
        """The text after an edit, whose positions count UTF-16."""
        assert edit and edit.document_changes
        [change] = edit.document_changes
        assert isinstance(change, lsp.TextDocumentEdit)
        assert (change.text_document.uri, change.text_document.version) == (self.uri, self.version)
        lines = self.text.splitlines(keepends=True)

        def offset(p: lsp.Position) -> int:
            line = lines[p.line] if p.line < len(lines) else ""
            return sum(map(len, lines[: p.line])) + len(line.encode("utf-16-le")[: 2 * p.character].decode("utf-16-le"))

        edits = [Edit(offset(e.range.start), offset(e.range.end), e.new_text) for e in change.edits]  # type: ignore[union-attr]
        return apply(self.text, edits)


def session(path: Path, play: Callable[[Editor], Awaitable[None]], resolves: bool = False, **settings: Any) -> Editor:
    """Start a server as an editor does, run what is played, and end it."""

    async def run() -> Editor:
        client = LanguageClient("test", "1")
        editor = Editor(client, path)

        @client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: lsp.PublishDiagnosticsParams) -> None:
            editor.published.append(params)
            editor.news.set()

        @client.feature(lsp.WINDOW_SHOW_MESSAGE)
        def shown(params: lsp.ShowMessageParams) -> None:
            editor.messages.append(params.message)
            editor.news.set()

        await client.start_io(sys.executable, "-m", "fuselint", "server")
        support = lsp.ClientCodeActionResolveOptions(["edit"]) if resolves else None
        capabilities = lsp.ClientCapabilities(
            text_document=lsp.TextDocumentClientCapabilities(
                code_action=lsp.CodeActionClientCapabilities(resolve_support=support)
            )
        )
        options = {"settings": settings} if settings else None
        answer = await client.initialize_async(
            lsp.InitializeParams(capabilities, process_id=os.getpid(), initialization_options=options)
        )
        assert answer.server_info and answer.server_info.name == "fuselint"
        client.initialized(lsp.InitializedParams())
        try:
            await asyncio.wait_for(play(editor), 60)
        finally:
            await asyncio.wait_for(client.shutdown_async(None), 30)
            client.exit(None)
            await asyncio.wait_for(client.stop(), 30)
        return editor

    return asyncio.run(run())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "norm.py"


def test_it_reports_on_open_change_and_close(path: Path) -> None:
    async def play(editor: Editor) -> None:
        editor.open(NORM)
        [found] = await editor.diagnostics()
        assert (found.code, found.source, found.severity) == ("FUS201", "fuselint", lsp.DiagnosticSeverity.Warning)
        assert (found.range.start, found.range.end) == (lsp.Position(13, 15), lsp.Position(13, 46))
        for n in range(5):  # typing: only the last version is checked
            editor.change(f"# {n}\n{NORM}")
        [found] = await editor.diagnostics()
        assert found.range.start.line == 14
        assert [p.version for p in editor.published] == [1, 6]
        editor.change(PLAIN)
        assert await editor.diagnostics() == []
        editor.change("import mlx.core as mx\n(")
        [found] = await editor.diagnostics()
        assert (found.code, found.severity) == ("FUS000", lsp.DiagnosticSeverity.Error)
        document = lsp.TextDocumentIdentifier(editor.uri)
        editor.client.text_document_did_save(lsp.DidSaveTextDocumentParams(document))
        editor.client.text_document_did_close(lsp.DidCloseTextDocumentParams(document))
        while editor.published[-1].version is not None:
            editor.news.clear()
            await asyncio.wait_for(editor.news.wait(), 60)
        assert list(editor.published[-1].diagnostics) == []

    session(path, play)


def test_hover_says_the_traffic(path: Path) -> None:
    async def play(editor: Editor) -> None:
        editor.open(NORM)
        await editor.diagnostics()
        document = lsp.TextDocumentIdentifier(editor.uri)
        here = await editor.client.text_document_hover_async(lsp.HoverParams(document, lsp.Position(13, 20)))
        assert here and isinstance(here.contents, lsp.MarkupContent)
        for part in (
            "**FUS201 unfused-rms-norm**",
            "9 kernels move 36*T*D bytes",
            "saves at least 71 % of these bytes, 20*T*D",
            "fix (safe",
        ):
            assert part in here.contents.value
        assert await editor.client.text_document_hover_async(lsp.HoverParams(document, lsp.Position(2, 0))) is None

    session(path, play)


def test_actions_fix_silence_and_fix_all(path: Path) -> None:
    async def play(editor: Editor) -> None:
        editor.open(NORM)
        [found] = await editor.diagnostics()
        fix, silence, everything = await editor.actions(found.range)
        assert fix.title == "Fix FUS201: mx.fast.rms_norm(x, self.weight, self.eps)" and fix.is_preferred
        wanted = "    def __call__(self, x):\n        return mx.fast.rms_norm(x, self.weight, self.eps)\n"
        assert editor.applied(fix.edit).endswith(wanted)
        assert silence.title == "Silence FUS201 here with # noqa"
        assert editor.applied(silence.edit) == NORM.rstrip("\n") + "  # noqa: FUS201\n"
        assert everything.kind == "source.fixAll.fuselint"
        assert editor.applied(everything.edit).endswith(wanted)
        assert [a.kind for a in await editor.actions(found.range, "source.fixAll")] == ["source.fixAll.fuselint"]
        assert [a.kind for a in await editor.actions(found.range, "quickfix")] == ["quickfix"] * 2
        assert await editor.actions(found.range, "refactor") == []
        elsewhere = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))
        assert [a.kind for a in await editor.actions(elsewhere)] == ["source.fixAll.fuselint"]
        editor.change("\n" + NORM)
        assert await editor.actions(found.range) == []  # of a text that wasn't checked yet

    session(path, play)


def test_what_is_unsafe_is_named_and_columns_count_utf_16(path: Path) -> None:
    async def play(editor: Editor) -> None:
        editor.open(UNSAFE)
        [found] = await editor.diagnostics()
        assert found.range.start == lsp.Position(4, len("    '''é😀'''; return ") + 1)  # the emoji are two units
        fix, silence, everything = await editor.actions(found.range, "quickfix") + await editor.actions(
            found.range, "source"
        )
        assert fix.title.startswith("Fix FUS301 (unsafe): ") and not fix.is_preferred
        compile(editor.applied(fix.edit), "m.py", "exec")
        assert "'''é😀'''; return loud" not in editor.applied(fix.edit).splitlines()[4]
        assert editor.applied(silence.edit).splitlines()[4].endswith("  # noqa: FUS301")
        assert everything.edit and everything.edit.document_changes
        assert editor.applied(everything.edit) == UNSAFE  # nothing is safe

    session(path, play)


def test_a_client_that_resolves_asks_for_the_edit(path: Path) -> None:
    async def play(editor: Editor) -> None:
        editor.open(NORM)
        [found] = await editor.diagnostics()
        [action] = await editor.actions(found.range, "source.fixAll")
        assert action.edit is None
        resolved = await editor.client.code_action_resolve_async(action)
        assert "mx.fast.rms_norm" in editor.applied(resolved.edit)

    session(path, play, resolves=True)


def test_settings_come_from_files_and_from_the_editor(path: Path) -> None:
    async def silent(editor: Editor) -> None:
        editor.open(NORM)
        assert await editor.diagnostics() == []

    session(path, silent, ignore=["FUS201"])
    (path.parent / "fuselint.toml").write_text('ignore = ["FUS2"]\n')
    session(path, silent)

    async def wrong(editor: Editor) -> None:
        editor.open(NORM)
        while not editor.messages:
            editor.news.clear()
            await asyncio.wait_for(editor.news.wait(), 60)
        assert "fuselint.toml:1: unknown setting" in editor.messages[0]

    (path.parent / "fuselint.toml").write_text("ignor = []\n")
    session(path, wrong)

    async def wrong_too(editor: Editor) -> None:
        while not editor.messages:
            editor.news.clear()
            await asyncio.wait_for(editor.news.wait(), 60)
        assert 'settings of the editor: selct: unknown setting "selct"' in editor.messages[0]

    session(path, wrong_too, selct=[])


def test_without_pygls_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['pygls'] = None; from fuselint.cli import main; main(['server'])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 2 and 'pip install "fuselint[server]"' in ran.stderr
