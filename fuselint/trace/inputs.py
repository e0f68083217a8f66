"""The text of a request: `model:Model.__call__`, `x=f16[1,2048,4096]`, `mask=None`. Imports nothing of MLX."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fuselint.config import nearest
from fuselint.errors import ConfigError

DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "i8": "int8", "i16": "int16", "i32": "int32",
    "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "bool": "bool_",
    "c64": "complex64",
}  # fmt: skip
LONG = {**{long.rstrip("_"): long for long in DTYPES.values()}, "bool_": "bool_"}

_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)
_ARRAY = re.compile(r"\s*([A-Za-z]\w*)\s*\[([\w\s,]*)\]\s*")


@dataclass(frozen=True, slots=True)
class ArrayInput:
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Input:
    """value: an array to make, or a Python expression. name: "" for one that is given by position."""

    text: str
    name: str
    value: ArrayInput | str


def split_target(text: str) -> tuple[str, str]:
    """The module (or file), and the path inside it."""
    module, colon, path = text.rpartition(":")
    if not colon or not module or not all(part.isidentifier() or part.isdecimal() for part in path.split(".")):
        raise ConfigError(f"trace: expected MODULE:CALLABLE, such as models.llama:Model, not {text!r}")
    return module, path


def parse_input(text: str, sizes: Mapping[str, int]) -> Input:
    """`x=f16[1,L,4096]`, `f16[8]`, `n=3` or `cache=make()`; `sizes` are those that names in a shape stand for."""
    named = _NAMED.fullmatch(text)
    name, value = named.groups() if named else ("", text)
    array = _ARRAY.fullmatch(value)
    if array is not None and (array.group(1) in DTYPES or array.group(1) in LONG):
        dtype, dims = array.groups()
        shape = tuple(_size(d.strip(), sizes, text) for d in dims.split(",") if d.strip())
        return Input(text, name, ArrayInput(shape, DTYPES.get(dtype) or LONG[dtype]))
    try:
        compile(value.strip(), "--input", "eval")
    except SyntaxError as e:
        raise ConfigError(
            f"--input {text}: neither a shape such as x=f16[1,2048,4096] nor a Python expression ({e.msg})"
        ) from e
    if array is not None and array.group(1) not in sizes and nearest(array.group(1), DTYPES):
        raise ConfigError(f'--input {text}: unknown dtype "{array.group(1)}"{nearest(array.group(1), DTYPES)}')
    return Input(text, name, value.strip())


def _size(text: str, sizes: Mapping[str, int], whole: str) -> int:
    if text.isdecimal():
        return int(text)
    if text not in sizes:
        raise ConfigError(f"--input {whole}: {text} is no size: give --shape {text}=N{nearest(text, sizes)}")
    return sizes[text]
