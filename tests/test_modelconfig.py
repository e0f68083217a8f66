"""Configurations of models: those that are shipped, nested ones, and what is said of broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselint.errors import ConfigError
from fuselint.modelconfig import ModelConfig, families, load

FAMILIES = {
    "llama-3-8b": (4096, 32, 32, 8, 128, 14336, 128256),
    "mistral-7b": (4096, 32, 32, 8, 128, 14336, 32768),
    "qwen2.5-7b": (3584, 28, 28, 4, 128, 18944, 152064),
    "gemma-2-9b": (3584, 42, 16, 8, 256, 14336, 256000),
    "phi-3-mini": (3072, 32, 32, 32, 96, 8192, 32064),
}
"""Features, layers, heads, key and value heads, head dimension, inner width and vocabulary, as their makers state."""


def test_the_shipped_families() -> None:
    assert families() == sorted(FAMILIES)
    roles = ("features", "layers", "heads", "kv_heads", "head", "inner", "vocabulary")
    for name, sizes in FAMILIES.items():
        config = load(name, "--model-config")
        assert config.name == name
        assert tuple(config.role(r) for r in roles) == sizes
        assert config.role("group") == sizes[2] // sizes[3]


def test_a_file_or_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"d_model": 8, "n_layers": 2, "n_heads": 4}')
    for given in (path, tmp_path):
        config = load(str(given), "--model-config")
        assert (config.role("features"), config.role("head"), config.role("kv_heads")) == (8, 2, 4)


NESTED = {
    "model_type": "seeing",
    "text_config": {"hidden_size": 64, "num_hidden_layers": 4},
    "vision_config": {"hidden_size": 32, "num_hidden_layers": 2},
}


def test_sections_go_to_the_classes_that_are_named_after_them() -> None:
    config = ModelConfig("seeing", NESTED)
    assert config.role("features") == 64  # the language model's
    assert config.section("VisionConfig") == NESTED["vision_config"]
    assert config.section("TextConfig") == config.section("ModelArgs") == NESTED["text_config"]


def test_sections_inside_sections() -> None:
    config = ModelConfig("hearing", {"talker_config": {"rate": 2}, "thinker_config": NESTED})
    assert config.role("features") == 64
    assert config.section("VisionConfig") == NESTED["vision_config"]
    assert config.section("TalkerConfig") == {"rate": 2}


def test_what_says_nothing_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """Null values, keys that nobody knows, and the mark that Windows puts before a text."""
    path = tmp_path / "config.json"
    said = '{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": null, "rope": {"a": NaN},'
    path.write_text(f'\ufeff{said} "num_key_value_heads": null, "intermediate_size": null}}', encoding="utf-8")
    config = load(str(path), "--model-config")
    roles = ("features", "head", "kv_heads", "inner", "vocabulary")
    assert tuple(map(config.role, roles)) == (64, 16, 4, None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "config.json:1:2: not valid JSON: Expecting property name"),
        ('{"hidden_size": 8,\n "x" 1}', "config.json:2:6: not valid JSON: Expecting ':' delimiter"),
        ("[]", "config.json: expected an object with keys such as hidden_size, not a list"),
        ("null", "config.json: expected an object with keys such as hidden_size, not null"),
        ('{"hidden_size": "8"}', 'config.json: "hidden_size" is "8", not a positive whole number'),
        ('{"hidden_size": true}', 'config.json: "hidden_size" is true, not a positive whole number'),
        ('{"hidden_size": 8.5}', 'config.json: "hidden_size" is 8.5, not a positive whole number'),
        ('{"hidden_size": -8}', 'config.json: "hidden_size" is -8, not a positive whole number'),
        ('{"hidden_size": [8, 0]}', 'config.json: "hidden_size" is a list, not a positive whole number'),
        (f'{{"hidden_size": 1{"0" * 20}}}', "not a positive whole number"),
        ('{"text_config": {"hidden_size": 0}}', '"text_config.hidden_size" is 0, not a positive whole number'),
        ('{"text_config": 3}', 'config.json: "text_config" is 3, not an object'),
        ('{"num_hidden_layers": 2}', 'config.json: has no "hidden_size" (nor n_embd, '),
        ('{"hidden_size": 8}', 'config.json: has no "num_hidden_layers" (nor n_layer, '),
        ("[" * 100_000, "config.json: nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(str(path), "--model-config")
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_files_that_cant_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--model-config: .*none.json: can't be read: No such file"):
        load(str(tmp_path / "none.json"), "--model-config")
    with pytest.raises(ConfigError, match="shipped are gemma-2-9b, llama-3-8b"):
        load("lama-3-8b", "--model-config")
    (tmp_path / "config.json").write_bytes(b"{\xff}")
    with pytest.raises(ConfigError, match=r"config.json: not UTF-8 at byte 1"):
        load(str(tmp_path), "--model-config")


def test_sizes_of_each_layer_are_taken_but_no_one_number(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"d_model": 8, "n_layers": 2, "n_heads": 4, "num_kv_heads": [1, 2]}')
    assert load(str(tmp_path), "--model-config").role("kv_heads") is None
