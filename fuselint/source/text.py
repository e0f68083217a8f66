"""A file's text, exactly as it stands, and its way back to bytes.

Offsets are code points into the decoded text, which keeps the file's own line endings and has no byte order mark.
Lines end where Python's tokenizer ends them: at `\\n`, `\\r\\n` and `\\r`, and nowhere else. `str.splitlines` would
also split at form feeds and U+2028, and so disagree with every line number that `ast` gives.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import mmap
import os
import re
import stat
import tempfile
import time
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from fuselint.errors import FuselintError, UnreadableFile

LARGEST = 5_000_000
"""Bytes. A longer file is data, not a model: it is refused rather than parsed for minutes, into gigabytes."""

TEMPORARY = ".fuselint-{}-*.tmp"
"""What write_atomic calls the file that takes another's place, by its process."""
_OF_PROCESS = re.compile(r"\.fuselint-(\d+)-.*\.tmp")
LEFT_OVER_AFTER = 10.0
"""Seconds. A temporary file lives for some milliseconds: an older one, of a process that is gone, is left over. On
another machine of a shared folder the process may run all the same."""

NAMES_MLX = b"mlx"
"""A file without these bytes can't import MLX under any spelling."""

_COOKIE = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK = re.compile(rb"[ \t\f]*(?:#.*)?")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_NEWLINE_BYTES = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class FileText:
    """A decoded file. `newline` is its most frequent line ending, "\\n" where it has none."""

    path: str
    text: str
    newline: str = "\n"
    encoding: str = "utf-8"
    bom: bool = False

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The offset of the first code point of each line."""
        return (0, *(m.end() for m in _NEWLINE.finditer(self.text)))

    @cached_property
    def _ascii(self) -> bool:
        return self.text.isascii()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the text."""
        return fingerprint(self.text)

    @property
    def lines(self) -> int:
        return len(self.starts)

    def encode(self, text: str) -> bytes:
        """`text` as bytes of this file: its encoding, and its byte order mark if it had one."""
        try:
            data = text.encode(self.encoding)
        except UnicodeEncodeError as e:
            raise FuselintError(
                f"{self.path}: {text[e.start]!r} can't be written in this file's encoding, {self.encoding}"
            ) from None
        return codecs.BOM_UTF8 + data if self.bom else data

    def problem(self, text: str) -> str:
        """Why a changed text can't take this file's place, or ""."""
        return ""

    def position(self, offset: int) -> tuple[int, int]:
        """The 1-based line and column of an offset."""
        if not 0 <= offset <= len(self.text):
            raise ValueError(f"offset {offset} lies outside {self.path} ({len(self.text)} code points)")
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def offset(self, line: int, column: int) -> int:
        """The offset of a 1-based line and column. The column after a line's last code point counts as on it."""
        start, end = self.line_span(line)
        if not 1 <= column <= end - start + 1:
            raise ValueError(f"{self.path} has no column {column} in line {line}")
        return start + column - 1

    def ast_offset(self, line: int, column: int) -> int:
        """The offset of a position as `ast` gives it: a 1-based line and a 0-based column in UTF-8 bytes."""
        start = self.starts[line - 1]
        if self._ascii:
            return start + column
        _, end = self.line_span(line)
        return start + len(self.text[start:end].encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))

    def line_span(self, line: int) -> tuple[int, int]:
        """The offsets of a line's first code point and of its line ending (or the end of the text)."""
        if not 1 <= line <= len(self.starts):
            raise ValueError(f"{self.path} has no line {line}")
        start = self.starts[line - 1]
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        while end > start and self.text[end - 1] in "\r\n":
            end -= 1
        return start, end

    def line(self, line: int) -> str:
        """The text of a line, without its ending."""
        start, end = self.line_span(line)
        return self.text[start:end]


def slashed(path: str, separator: str = os.sep) -> str:
    """A path as every platform writes it: with `/`, which Windows takes too."""
    return path.replace("\\", "/") if separator == "\\" else path


def fingerprint(text: str) -> str:
    """A hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def read(path: str | os.PathLike[str]) -> FileText:
    """Read and decode a Python file. Raises UnreadableFile, which says why and where."""
    path = os.fspath(path)
    return decode(path, _bytes(path))


def decode(path: str, data: bytes) -> FileText:
    """The text of a file's bytes, by its byte order mark or coding line (PEP 263), else UTF-8.

    Bytes that don't name mlx are never analysed. Where they can't be decoded they are taken as Latin-1, which has
    every byte and gives the same bytes back: such a file is none of a linter's business, and no error.
    """
    if path.endswith(".ipynb") and NAMES_MLX in data:
        from fuselint.source import notebook

        return notebook.decode(path, data)
    bom = data.startswith(codecs.BOM_UTF8)
    body = data[len(codecs.BOM_UTF8) :] if bom else data
    try:
        encoding = _encoding(path, body, bom)
        text = _text(path, body, encoding)
    except UnreadableFile:
        if NAMES_MLX in data:
            raise
        encoding, text, bom = "latin-1", data.decode("latin-1"), False
    return FileText(path, text, _newline(text), encoding, bom)


def write_atomic(path: str | os.PathLike[str], data: bytes, expected: bytes | None = None) -> None:
    """Replace a file's content in one step: a reader sees the old bytes or the new ones, never a part of them.

    The bytes go to a temporary file in the same folder first, and to the disk. The mode is kept. A symbolic link
    stays, and the file it points to is written. With `expected`, nothing is written where the file no longer holds
    these bytes.
    """
    shown, path = os.fspath(path), os.path.realpath(path)
    try:
        mode = _writable_mode(shown, path)
        prefix, suffix = TEMPORARY.format(os.getpid()).split("*")
        fd, temporary = tempfile.mkstemp(suffix, prefix, os.path.dirname(path))
        try:
            with open(fd, "wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            os.chmod(temporary, mode)
            if expected is not None:
                _require(shown, path, expected)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except FileNotFoundError:
        raise FuselintError(f"{shown}: can't be written: it, or its folder, no longer exists") from None
    except OSError as e:
        raise FuselintError(f"{shown}: can't be written: {e.strerror or e}") from None


def remove_left_over(folder: str) -> None:
    """Remove the temporary files in a folder of processes that were killed while they wrote."""
    with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            named = _OF_PROCESS.fullmatch(entry.name)
            if named and time.time() - entry.stat().st_mtime > LEFT_OVER_AFTER and not _runs(int(named[1])):
                os.unlink(entry.path)


def _runs(pid: int) -> bool:
    if os.name == "nt":
        return False  # a signal would end it there; its age tells
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _require(shown: str, path: str, expected: bytes) -> None:
    """Asked last of all, so that hardly any time is left in which somebody else could write."""
    with open(path, "rb") as f:
        if f.read() != expected:
            raise FuselintError(f"{shown}: changed on disk since it was read; nothing was written to it")


def _writable_mode(shown: str, path: str) -> int:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    if not stat.S_ISREG(status.st_mode):
        raise FuselintError(f"{shown}: can't be written: it is not a regular file")
    if not status.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise FuselintError(f"{shown}: can't be written: the file is read-only (chmod u+w to let it be fixed)")
    return stat.S_IMODE(status.st_mode)


def content(path: str) -> bytes | None:
    """What a file holds; None where it can't be read, or is too long to be looked at."""
    with contextlib.suppress(UnreadableFile):
        return _bytes(path)
    return None


def _bytes(path: str) -> bytes:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise UnreadableFile(path, "is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableFile(path, "is not a regular file")
        with open(path, "rb") as f:
            if status.st_size > LARGEST:
                return _refuse(path, f.fileno(), status.st_size)
            return f.read()
    except FileNotFoundError:
        reason = "is a symbolic link to nothing" if os.path.islink(path) else "no such file (it may just have vanished)"
        raise UnreadableFile(path, reason) from None
    except PermissionError:
        raise UnreadableFile(path, "may not be read: permission denied") from None
    except ValueError as e:  # a path with a NUL byte
        raise UnreadableFile(path, str(e)) from None
    except OSError as e:  # such as a loop of symbolic links
        raise UnreadableFile(path, f"can't be read: {e.strerror or e}") from None


def _refuse(path: str, fd: int, size: int) -> bytes:
    """A file that is too long is an error if it names mlx; else it counts as an empty one."""
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as view:
        if view.find(NAMES_MLX) < 0:
            return b""
    raise UnreadableFile(path, f"has {size / 1e6:.0f} MB; files above {LARGEST / 1e6:.0f} MB are not analysed")


def _encoding(path: str, body: bytes, bom: bool) -> str:
    first = _NEWLINE_BYTES.split(body[:10_000], maxsplit=2)[:2]
    cookie, line = _COOKIE.match(first[0]), 1
    if cookie is None and len(first) == 2 and _BLANK.fullmatch(first[0]):
        cookie, line = _COOKIE.match(first[1]), 2
    if cookie is None:
        return "utf-8"
    name = cookie[1].decode("ascii", "replace")
    try:
        info = codecs.lookup(name)
    except (LookupError, ValueError):
        raise UnreadableFile(path, f"its coding line names an unknown encoding, {name!r}", line) from None
    if not getattr(info, "_is_text_encoding", True):
        raise UnreadableFile(path, f"its coding line names {name!r}, which is no text encoding", line)
    encoding = "utf-8" if info.name == "utf-8-sig" else info.name
    if bom and encoding != "utf-8":
        raise UnreadableFile(path, f"has a UTF-8 byte order mark, but its coding line names {name!r}", line)
    return encoding


def _text(path: str, body: bytes, encoding: str) -> str:
    try:
        text = body.decode(encoding)
        same = encoding == "utf-8" or text.encode(encoding) == body
    except UnicodeDecodeError as e:
        before = body[: e.start]
        line = len(_NEWLINE_BYTES.findall(before)) + 1
        start = max(before.rfind(b"\n"), before.rfind(b"\r")) + 1
        column = len(before[start:].decode(encoding, "ignore")) + 1
        hint = "; name its encoding in a coding line, such as # -*- coding: latin-1 -*-" if encoding == "utf-8" else ""
        shown = "UTF-8" if encoding == "utf-8" else encoding
        raise UnreadableFile(path, f"byte 0x{body[e.start]:02x} is not {shown}{hint}", line, column) from None
    except UnicodeError as e:
        raise UnreadableFile(path, f"is not {encoding}: {e}") from None
    if not same:
        raise UnreadableFile(path, f"does not come back from {encoding} as the same bytes")
    return text


def _newline(text: str) -> str:
    if "\r" not in text:
        return "\n"
    crlf = text.count("\r\n")
    counts = {"\n": text.count("\n") - crlf, "\r\n": crlf, "\r": text.count("\r") - crlf}
    best = max(counts, key=lambda k: counts[k])
    return best if counts[best] else "\n"
