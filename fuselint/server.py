"""The language server: findings while one types, their traffic on hover, fixes and silencing as code actions.

pygls speaks the protocol; it is an optional dependency. A document is checked in a thread, at most one at a time, once
nothing was typed for a moment; what has been overtaken by then is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from fuselint import __version__
from fuselint.config import Layer, Settings, layer
from fuselint.engine import check_file, fix_text
from fuselint.errors import FuselintError
from fuselint.finding import Edit, FileResult, Finding
from fuselint.layers import Layers
from fuselint.report import level
from fuselint.report.full import explained
from fuselint.rulebook import OWN
from fuselint.source.suppress import noqa
from fuselint.source.text import FileText

DEBOUNCE = 0.3
"""Seconds after the last change before a document is checked."""

FIX_ALL = "source.fixAll.fuselint"

SEVERITIES = {
    "error": lsp.DiagnosticSeverity.Error,
    "warning": lsp.DiagnosticSeverity.Warning,
    "note": lsp.DiagnosticSeverity.Information,
}


@dataclass(slots=True)
class Checked:
    """A document as it was checked."""

    version: int | None
    file: FileText
    result: FileResult


class Server(LanguageServer):
    """checked: by URI. waiting: the checks that are due. over: what the client says of settings."""

    def __init__(self) -> None:
        super().__init__("fuselint", __version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Full)
        self.checked: dict[str, Checked] = {}
        self.waiting: dict[str, asyncio.Task[None]] = {}
        self.over: list[Layer] = []
        self.worker = ThreadPoolExecutor(1)
        self.said = ""

    # -- checking -----------------------------------------------------------------------------------------------------

    def due(self, uri: str, delay: float) -> None:
        """Check a document soon; an earlier plan to do so is dropped."""
        if uri in self.waiting:
            self.waiting[uri].cancel()
        self.waiting[uri] = asyncio.get_running_loop().create_task(self.check(uri, delay))

    async def check(self, uri: str, delay: float = 0.0) -> None:
        await asyncio.sleep(delay)
        document = self.workspace.get_text_document(uri)
        file, version = FileText(_path(uri), document.source), document.version
        try:
            settings = self.settings(file.path)
            result = await self.apart(check_file, file, settings)
        except FuselintError as e:
            self.tell(str(e))
            return
        if self.workspace.get_text_document(uri).version != version:
            return  # it was changed meanwhile, and will be checked again
        self.checked[uri] = Checked(version, file, result)
        for error in result.errors:
            self.tell(error.split("\n", 1)[0])
        self.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri, [self.diagnostic(file, f) for f in result.findings], version)
        )

    async def apart(self, call: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.worker, call, *args)

    def settings(self, path: str) -> Settings:
        return Layers(over=self.over).of(path)

    def tell(self, message: str) -> None:
        """Say it to the user, once."""
        if message != self.said:
            self.said = message
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Error, f"fuselint: {message}"))

    # -- places -------------------------------------------------------------------------------------------------------

    def position(self, file: FileText, line: int, column: int) -> lsp.Position:
        """A 1-based line and column, in code points, as the client counts."""
        return lsp.Position(line - 1, self.units(file.line(line)[: column - 1]))

    def units(self, text: str) -> int:
        encoding = self.workspace.position_encoding
        if encoding == lsp.PositionEncodingKind.Utf32:
            return len(text)
        if encoding == lsp.PositionEncodingKind.Utf8:
            return len(text.encode("utf-8", "surrogatepass"))
        return len(text.encode("utf-16-le", "surrogatepass")) // 2

    def range(self, file: FileText, f: Finding) -> lsp.Range:
        return lsp.Range(self.position(file, f.line, f.column), self.position(file, f.end_line, f.end_column))

    def edit(self, file: FileText, uri: str, edits: Sequence[Edit], version: int | None) -> lsp.WorkspaceEdit:
        changes = [
            lsp.TextEdit(
                lsp.Range(self.position(file, *file.position(e.start)), self.position(file, *file.position(e.end))),
                e.text,
            )
            for e in edits
        ]
        document = lsp.OptionalVersionedTextDocumentIdentifier(uri=uri, version=version)
        return lsp.WorkspaceEdit(document_changes=[lsp.TextDocumentEdit(document, list(changes))])

    # -- what is shown ------------------------------------------------------------------------------------------------

    def diagnostic(self, file: FileText, f: Finding) -> lsp.Diagnostic:
        related = [
            lsp.DiagnosticRelatedInformation(
                lsp.Location(Path(r.path).resolve().as_uri(), _whole_line(r.line)), r.message
            )
            for r in f.related
        ]
        return lsp.Diagnostic(
            self.range(file, f),
            f.message,
            severity=SEVERITIES[level(f)],
            code=f.code,
            source="fuselint",
            related_information=related or None,
            data={"id": f.id},
        )

    def hover(self, uri: str, at: lsp.Position) -> lsp.Hover | None:
        known = self.checked.get(uri)
        if known is None:
            return None
        hits = [f for f in known.result.findings if _holds(self.range(known.file, f), lsp.Range(at, at))]
        if not hits:
            return None
        texts = ["\n".join([f"**{f.code} {f.name}**: {f.message}", "", *explained(f)]) for f in hits]
        return lsp.Hover(
            lsp.MarkupContent(lsp.MarkupKind.Markdown, "\n\n---\n\n".join(t.replace("\n", "  \n") for t in texts)),
            self.range(known.file, hits[0]),
        )

    def actions(self, uri: str, where: lsp.Range, only: Sequence[str]) -> Iterator[lsp.CodeAction]:
        known = self.checked.get(uri)
        if known is None or known.version != self.workspace.get_text_document(uri).version:
            return  # its edits would not fit
        file = known.file

        def asked(kind: str) -> bool:
            return not only or any(kind == o or kind.startswith(f"{o}.") for o in only)

        for f in known.result.findings if asked("quickfix") else ():
            if not _holds(self.range(file, f), where):
                continue
            diagnostics = [self.diagnostic(file, f)]
            if f.fix and f.fix.edits:
                safe = f.fix.applicability == "safe"
                title = f"Fix {f.code}{'' if safe else ' (unsafe)'}: {f.fix.message}"
                edit = self.edit(file, uri, f.fix.edits, known.version)
                kind = lsp.CodeActionKind.QuickFix
                yield lsp.CodeAction(title, kind=kind, diagnostics=diagnostics, edit=edit, is_preferred=safe)
            if f.code not in OWN and (edits := noqa(file, {f.end_line: {f.code}})):
                edit = self.edit(file, uri, edits, known.version)
                title = f"Silence {f.code} here with # noqa"
                yield lsp.CodeAction(title, kind=lsp.CodeActionKind.QuickFix, diagnostics=diagnostics, edit=edit)
        if asked(FIX_ALL) and any(f.fix and f.fix.edits for f in known.result.findings):
            yield lsp.CodeAction("Fix all that fuselint can fix safely", kind=FIX_ALL, data={"uri": uri})

    async def fixed(self, action: lsp.CodeAction) -> lsp.CodeAction:
        """A fix-all with its edit: fixes are made in rounds, which takes its time."""
        uri = action.data["uri"] if isinstance(action.data, dict) else ""
        known = self.checked.get(uri)
        if known is not None and action.edit is None:
            done = await self.apart(fix_text, known.file, self.settings(known.file.path))
            action.edit = self.edit(known.file, uri, _difference(done.before, done.after), known.version)
        return action


def _difference(before: str, after: str) -> tuple[Edit, ...]:
    """One edit that makes one text of the other."""
    shortest = min(len(before), len(after))
    start = next((i for i in range(shortest) if before[i] != after[i]), shortest)
    end = next((i for i in range(shortest - start) if before[-1 - i] != after[-1 - i]), shortest - start)
    return (Edit(start, len(before) - end, after[start : len(after) - end]),) if before != after else ()


def _holds(outer: lsp.Range, inner: lsp.Range) -> bool:
    """Whether the ranges meet."""
    return outer.start <= inner.end and inner.start <= outer.end


def _whole_line(line: int) -> lsp.Range:
    return lsp.Range(lsp.Position(line - 1, 0), lsp.Position(line, 0))


def _path(uri: str) -> str:
    return to_fs_path(uri) or uri


def _resolves(capabilities: lsp.ClientCapabilities) -> bool:
    """Whether the client asks for the edit of an action when it is chosen."""
    actions = capabilities.text_document and capabilities.text_document.code_action
    support = actions and actions.resolve_support
    return bool(support and "edit" in support.properties)


def make() -> Server:
    """The server with its features, not started."""
    server = Server()

    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        options = params.initialization_options
        table = options.get("settings", {}) if isinstance(options, dict) else {}
        try:
            server.over = [layer(table, lambda key: f"settings of the editor: {key}", Path())]
        except FuselintError as e:
            server.tell(str(e))

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    async def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        server.due(params.text_document.uri, 0.0)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        server.due(params.text_document.uri, DEBOUNCE)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    async def saved(params: lsp.DidSaveTextDocumentParams) -> None:
        server.due(params.text_document.uri, 0.0)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        if uri in server.waiting:
            server.waiting.pop(uri).cancel()
        server.checked.pop(uri, None)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        return server.hover(params.text_document.uri, params.position)

    kinds = [lsp.CodeActionKind.QuickFix, FIX_ALL]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(kinds, resolve_provider=True))
    async def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        found = list(server.actions(params.text_document.uri, params.range, params.context.only or ()))
        if _resolves(server.client_capabilities):
            return found
        return [await server.fixed(a) if a.kind == FIX_ALL else a for a in found]

    @server.feature(lsp.CODE_ACTION_RESOLVE)
    async def resolve(action: lsp.CodeAction) -> lsp.CodeAction:
        return await server.fixed(action)

    return server
