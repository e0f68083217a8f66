"""The objects that constructors make for a configuration, and the sizes that their names stand for."""

from __future__ import annotations

import ast
import time

import pytest

from fuselint.modelconfig import ModelConfig
from fuselint.source.instances import Instances, instances

DATA = {
    "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 6, "intermediate_size": 96, "vocab_size": 100,
}  # fmt: skip

MODEL = """
@dataclass
class ModelArgs:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: Optional[int] = None
    layer_types: list = None
    window: int = 16

    def __post_init__(self):
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads // 2


class Norm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))


class Block(nn.Module):
    def __init__(self, args: ModelArgs, index: int = 0):
        super().__init__()
        self.n_heads = n_heads = args.num_attention_heads
        self.n_kv_heads = args.num_key_value_heads
        self.repeats = self.n_heads // self.n_kv_heads
        head_dim = args.hidden_size // n_heads
        self.norm = Norm(args.hidden_size)
        self.q_norm = Norm(head_dim)
        self.proj = nn.Linear(args.hidden_size, n_heads * head_dim)


class Model(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        {layers}
        self.norm = Norm(args.hidden_size)
"""


def found(source: str, data: dict[str, object] = DATA) -> dict[str, list[Instances]]:
    """Model is given a call: only what can be called is a model."""
    call = "class Model(nn.Module):\n    def __call__(self, x):\n        return x\n"
    source = source.replace("class Model(nn.Module):", call)
    return instances(ast.parse(source), ModelConfig("test", data))


def counts(source: str, data: dict[str, object] = DATA) -> dict[str, int]:
    return {name: sum(i.count for i in each) for name, each in found(source, data).items()}


@pytest.mark.parametrize(
    "layers",
    [
        "self.layers = [Block(args) for _ in range(args.num_hidden_layers)]",
        "self.layers = [Block(args, index=i) for i in range(args.num_hidden_layers)]",
        "self.layers = [Block(args)] + [Block(args, i) for i in range(1, args.num_hidden_layers, 1)]",
        "self.layers = []\n"
        "        for i in range(args.num_hidden_layers):\n            self.layers.append(Block(args))",
        "self.layers = [None] * args.num_hidden_layers\n"
        "        for i, _ in enumerate(self.layers):\n            self.layers[i] = Block(args)",
        "n = args.num_hidden_layers\n        self.layers = list(Block(args) for _ in range(n))",
        "self.layers = nn.Sequential(*[Block(args) for _ in range(args.num_hidden_layers)])",
        "self.layers = {str(i): Block(args) for i in range(args.num_hidden_layers)}",
    ],
)
def test_layers_are_counted_in_all_the_ways_they_are_made(layers: str) -> None:
    assert counts(MODEL.format(layers=layers)) == {"Model": 1, "Block": 6, "Norm": 13}


def test_names_stand_for_numbers_of_each_object() -> None:
    made = found(MODEL.format(layers="self.layers = [Block(args) for _ in range(args.num_hidden_layers)]"))
    (block,) = {i.of.class_name: i.of for i in made["Block"]}.values()
    said = {n: block.number(n) for n in ("args.hidden_size", "self.n_heads", "n_heads", "head_dim", "self.repeats")}
    assert said == {"args.hidden_size": 64, "self.n_heads": 4, "n_heads": 4, "head_dim": 16, "self.repeats": 2}
    assert block.number("args.window") == 16  # the default of a field
    assert block.number("args.num_key_value_heads") == 2  # as __post_init__ says
    assert block.number("x.shape[-1]") is None
    by_size = {size: sum(i.count for i in made["Norm"] if i.of.number("dims") == size) for size in (64, 16)}
    assert by_size == {64: 7, 16: 6}


def test_a_condition_on_the_index_of_a_layer() -> None:
    source = """
class Dense(nn.Module):
    def __init__(self, config):
        super().__init__()

class Sparse(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.experts = [Dense(config) for _ in range(config.num_experts)]

class Layer(nn.Module):
    def __init__(self, config, i):
        super().__init__()
        self.mlp = Sparse(config) if i >= config.first_sparse and i % 2 == 0 else Dense(config)

class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = [Layer(config, i) for i in range(config.num_hidden_layers)]
"""
    data = {**DATA, "num_experts": 8, "first_sparse": 2}
    assert counts(source, data) == {"Model": 1, "Layer": 6, "Sparse": 2, "Dense": 4 + 2 * 8}


def test_sections_of_a_configuration_are_those_of_their_classes() -> None:
    source = """
@dataclass
class VisionConfig:
    hidden_size: int
    num_hidden_layers: int

@dataclass
class TextConfig:
    hidden_size: int
    num_hidden_layers: int

@dataclass
class ModelConfig:
    text_config: TextConfig
    vision_config: VisionConfig

class Tower(nn.Module):
    def __init__(self, config: VisionConfig):
        super().__init__()
        self.width = config.hidden_size

class Decoder(nn.Module):
    def __init__(self, config: TextConfig):
        super().__init__()
        self.width = config.hidden_size

class Model(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.vision = Tower(config.vision_config)
        self.text = Decoder(config.text_config)
"""
    text, vision = {"hidden_size": 64, "num_hidden_layers": 4}, {"hidden_size": 32, "num_hidden_layers": 2}
    made = found(source, {"text_config": text, "vision_config": vision})
    assert made["Tower"][0].of.number("self.width") == 32
    assert made["Decoder"][0].of.number("self.width") == 64


def test_an_inherited_constructor_runs_on_the_class_that_is_made() -> None:
    source = """
class Base(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.width = args.hidden_size * self.factor()

    def factor(self):
        return 1

class Wide(Base):
    def factor(self):
        return 2

class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.a = Wide(args)
        self.b = Base(args)
"""
    made = found(source)
    assert {n: i.of.number("self.width") for n in ("Wide", "Base") for i in made[n]} == {"Wide": 128, "Base": 64}


def test_what_cant_be_told_is_unknown_and_harms_nothing() -> None:
    source = """
class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.odd = elsewhere(args)
        self.sum = self.odd + args.hidden_size
        self.more = [Part(args) for _ in self.odd]
        while self.odd:
            self.never = Part(args)
        self.fine = Part(args, width=args.hidden_size // 0 if self.odd else 3)

class Part(nn.Module):
    def __init__(self, args, width=None):
        super().__init__()
        self.width = width
"""
    made = found(source)
    assert sum(i.count for i in made["Model"]) == 1
    assert made["Model"][0].of.number("self.sum") is None


@pytest.mark.parametrize(
    "body",
    [
        "self.next = Model(args)",  # for ever
        "self.x = [i for i in range(10**9)]",
        "self.x = 10**10**10",
        "self.x = 'a' * 10**12",
        "for i in range(10**9):\n            for j in range(10**9):\n                self.x = i + j",
        "raise ValueError(args)",
        "self.x = [A(args) for _ in range(4000)]",
    ],
)
def test_constructors_without_an_end_are_given_up(body: str) -> None:
    source = f"class Model(nn.Module):\n    def __init__(self, args):\n        super().__init__()\n        {body}\n"
    for name, made in (("A", "B"), ("B", "C"), ("C", "D"), ("D", "object")):
        source += f"class {name}:\n    def __init__(self, a):\n        self.x = [{made}(a) for _ in range(4000)]\n"
    start = time.perf_counter()
    assert set(found(source)) <= {"Model", *"ABCD"}
    assert time.perf_counter() - start < 5.0
