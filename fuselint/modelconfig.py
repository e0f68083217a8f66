"""A model's configuration, as Hugging Face writes it: `config.json`, or one of the families that are shipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuselint import jsonfile
from fuselint.errors import ConfigError

SHIPPED = Path(__file__).parent / "data" / "configs"

ROLES: dict[str, tuple[str, ...]] = {
    "features": ("hidden_size", "n_embd", "d_model", "dim", "n_state", "n_text_state", "n_audio_state", "hidden_dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "n_text_layer", "n_audio_layer"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "n_text_head", "n_audio_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_attention_heads", "n_head", "n_heads"),
    "head": ("head_dim", "kv_channels", "d_kv"),
    "inner": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "hidden_dim"),
    "vocabulary": ("vocab_size", "n_vocab"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "chosen": ("num_experts_per_tok", "top_k_experts", "moe_topk"),
}
"""What a size is for, and the keys that say it, the usual one first."""

REQUIRED = ("features", "layers")

LARGEST = 10**12

COUNTS = frozenset(key for keys in ROLES.values() for key in keys)
"""Keys whose value must be a positive whole number, or a list of such."""

SECTION = "_config"
"""How the keys of nested configurations end: text_config, vision_config."""
LANGUAGE = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True)
class ModelConfig:
    """name: of the file or the family. data: the configuration as it stands."""

    name: str
    data: Mapping[str, Any] = field(hash=False)

    def section(self, class_name: str) -> Mapping[str, Any]:
        """The part that a config class of that name is made of: `VisionConfig` of vision_config."""
        lowered = class_name.lower().replace("_", "")
        for key, value in _sections(self.data):
            if key[: -len(SECTION)].lower() in lowered:
                return value
        return self.main

    @property
    def main(self) -> Mapping[str, Any]:
        """The language model's part: the whole, where nothing is nested."""
        if _found(self.data, "features") is not None:
            return self.data
        nested = sorted(_sections(self.data), key=lambda s: LANGUAGE.index(s[0]) if s[0] in LANGUAGE else len(LANGUAGE))
        return next((s for _, s in nested if _found(s, "features") is not None), self.data)

    def role(self, name: str) -> int | None:
        """A size by what it is for, of the language model."""
        found = _found(self.main, name)
        if found is None and name == "head":
            features, heads = (_found(self.main, r) for r in ("features", "heads"))
            return features // heads if features and heads else None
        if name == "group":
            heads, kept = (_found(self.main, r) for r in ("heads", "kv_heads"))
            return heads // kept if heads and kept else None
        return found


def _sections(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The configurations that are nested in another, each with its key, the outermost first."""
    level = [data]
    while level:
        inner = [(k, v) for held in level for k, v in held.items() if k.endswith(SECTION) and isinstance(v, dict)]
        yield from inner
        level = [v for _, v in inner]


def _found(data: Mapping[str, Any], role: str) -> int | None:
    for key in ROLES.get(role, ()):
        value = data.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, list):
            return None  # each layer has its own
    return None


def synonym(data: Mapping[str, Any], key: str) -> int | None:
    """What another key says that means the same: `n_layers` of num_hidden_layers."""
    roles = [role for role, keys in ROLES.items() if key in keys]
    return _found(data, roles[0]) if len(roles) == 1 else None


def families() -> list[str]:
    """The names of the configurations that are shipped."""
    return sorted(p.stem for p in SHIPPED.glob("*.json"))


def load(name: str, where: str, folder: Path | None = None) -> ModelConfig:
    """The configuration of a family, or of a file or its folder. where: what to blame. Raises ConfigError."""
    shipped = SHIPPED / f"{name}.json"
    path, shown = (folder or Path()) / name, Path(name)
    if shipped.parent == SHIPPED and shipped.is_file() and not path.exists():
        path = shipped
    elif path.is_dir():
        path, shown = path / "config.json", shown / "config.json"
    if not path.is_file():
        known = f"; shipped are {', '.join(families())}" if not path.suffix else ""
        raise ConfigError(f"{where}: {path}: can't be read: No such file or directory{known}")
    data = jsonfile.load(path).value
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected an object with keys such as hidden_size, not {_kind(data)}")
    _check(data, path, "")
    made = ModelConfig(str(shown), data)
    for role in REQUIRED:
        if made.role(role) is None:
            keys = ROLES[role]
            raise ConfigError(f'{path}: has no "{keys[0]}" (nor {", ".join(keys[1:])})')
    return made


def _check(data: Mapping[str, Any], path: Path, prefix: str) -> None:
    """Counts are positive whole numbers, sections are objects."""
    for key, value in data.items():
        if key in COUNTS and value is not None and not _is_count(value):
            raise ConfigError(f'{path}: "{prefix}{key}" is {_shown(value)}, not a positive whole number')
        if (key in LANGUAGE or key == "vision_config") and value is not None and not isinstance(value, dict):
            raise ConfigError(f'{path}: "{prefix}{key}" is {_shown(value)}, not an object')
        if key.endswith(SECTION) and isinstance(value, dict):
            _check(value, path, f"{prefix}{key}.")


def _is_count(value: Any) -> bool:
    """One number, or one for each layer."""
    each = value if isinstance(value, list) and value else [value]
    return all(type(n) is int and 1 <= n <= LARGEST for n in each)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")


def _shown(value: Any) -> str:
    return json.dumps(value)[:40] if not isinstance(value, (list, dict)) else _kind(value).replace("null", "an object")
