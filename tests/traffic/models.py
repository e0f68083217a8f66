"""Small models in several styles, each with how to make one of it whose sizes are those of KEYS."""

from __future__ import annotations

KEYS = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 256,
    "intermediate_size": 96, "head_dim": 16, "max_position_embeddings": 32,
}  # fmt: skip

HEAD = "from dataclasses import dataclass\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"

LLAMA = (
    HEAD
    + """
@dataclass
class ModelArgs:
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = None
    intermediate_size: int = 96
    vocab_size: int = 256
    rms_norm_eps: float = 1e-5

    def __post_init__(self):
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        dim = args.hidden_size
        self.n_heads = args.num_attention_heads
        self.n_kv_heads = args.num_key_value_heads
        self.head_dim = head_dim = dim // args.num_attention_heads
        self.q_proj = nn.Linear(dim, self.n_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(dim, self.n_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(dim, self.n_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(self.n_heads * head_dim, dim, bias=False)
        self.rope = nn.RoPE(head_dim)
        self.scale = head_dim**-0.5

    def __call__(self, x: mx.array) -> mx.array:
        B, L, _ = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = self.rope(q.reshape(B, L, self.n_heads, -1).transpose(0, 2, 1, 3))
        k = self.rope(k.reshape(B, L, self.n_kv_heads, -1).transpose(0, 2, 1, 3))
        v = v.reshape(B, L, self.n_kv_heads, -1).transpose(0, 2, 1, 3)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask="causal")
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(B, L, -1))


class MLP(nn.Module):
    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.down_proj = nn.Linear(hidden_dim, dim, bias=False)
        self.up_proj = nn.Linear(dim, hidden_dim, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.self_attn = Attention(args)
        self.mlp = MLP(args.hidden_size, args.intermediate_size)
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, x: mx.array) -> mx.array:
        h = x + self.self_attn(self.input_layernorm(x))
        return h + self.mlp(self.post_attention_layernorm(h))


class Model(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [Block(args) for _ in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, inputs: mx.array) -> mx.array:
        h = self.embed_tokens(inputs)
        for layer in self.layers:
            h = layer(h)
        return self.embed_tokens.as_linear(self.norm(h))
"""
)

GPT = (
    HEAD
    + """
class Config:
    def __init__(self, hidden_size=64, num_attention_heads=4, num_hidden_layers=2, vocab_size=256,
                 max_position_embeddings=32):
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.num_hidden_layers = num_hidden_layers
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_position_embeddings


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = mx.ones((width,))
        self.bias = mx.zeros((width,))

    def __call__(self, x):
        centred = x - mx.mean(x, axis=-1, keepdims=True)
        power = mx.mean(centred * centred, axis=-1, keepdims=True)
        return centred * mx.rsqrt(power + 1e-5) * self.weight + self.bias


class SelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.num_attention_heads
        self.c_attn = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.c_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def __call__(self, x):
        B, L, D = x.shape
        q, k, v = mx.split(self.c_attn(x), 3, axis=-1)
        q = q.reshape(B, L, self.n_head, -1).transpose(0, 2, 1, 3)
        k = k.reshape(B, L, self.n_head, -1).transpose(0, 2, 3, 1)
        v = v.reshape(B, L, self.n_head, -1).transpose(0, 2, 1, 3)
        weights = mx.softmax(q @ k * 0.25, axis=-1)
        return self.c_proj((weights @ v).transpose(0, 2, 1, 3).reshape(B, L, D))


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.c_proj = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def __call__(self, x):
        return self.c_proj(nn.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = LayerNorm(config.hidden_size)
        self.attention = SelfAttention(config)
        self.ln_2 = LayerNorm(config.hidden_size)
        self.feed_forward = FeedForward(config)

    def __call__(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.feed_forward(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.h = [Block(config) for _ in range(config.num_hidden_layers)]
        self.ln_f = LayerNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def __call__(self, tokens):
        _, L = tokens.shape
        x = self.wte(tokens) + self.wpe(mx.arange(L))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))
"""
)

LOOPS = (
    HEAD
    + """
@dataclass
class Config:
    hidden_size: int = 64
    num_hidden_layers: int = 3
    gated: bool = False


class Step(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width, bias=False)

    def __call__(self, x):
        return mx.tanh(self.proj(x))


class Refiner(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.rounds = config.num_hidden_layers
        self.gated = config.gated
        self.embed = nn.Embedding(256, config.hidden_size)
        self.first = Step(config.hidden_size)
        self.shared = Step(config.hidden_size)
        self.places = [1, 2, 3]

    def _mixed(self, x, y):
        return mx.maximum(x, y * 0.5)

    def __call__(self, tokens):
        x = self.first(self.embed(tokens))
        if self.gated:
            x = mx.sigmoid(x) * x
        else:
            x = mx.sin(x)
        for _ in range(self.rounds):
            y = self.shared(x)
            for _ in self.places:
                x = self._mixed(x, y)
        parts = [mx.exp(x - i) for i in range(self.rounds)]
        if self.gated:
            return self.shared(x) + self.shared(y)
        return self.shared(x), parts
"""
)

MODELS = {
    "llama": (LLAMA, "Model(ModelArgs(num_key_value_heads=2))"),
    "gpt": (GPT, "GPT(Config())"),
    "loops": (LOOPS, "Refiner(Config(num_hidden_layers=2))"),
}
