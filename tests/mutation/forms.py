"""True forms of each rule's computation, and what they are called on: the rules' own examples and more spellings."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache

from fuselint.rulebook import rules

HEAD = "import math\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"


@dataclass(frozen=True, slots=True)
class Form:
    """takes: the arguments of the module's last function or class (see running.arguments); init: of its `__init__`."""

    name: str
    source: str
    takes: str
    init: str = ""

    @property
    def entry(self) -> str:
        last = ast.parse(self.source).body[-1]
        assert isinstance(last, (ast.FunctionDef, ast.ClassDef))
        return last.name


NORM = "dims: =D"
HEADS = "q: B H L D, k: B H S D, v: B H S D"
ROTARY = "x: B H L D"
PACKED = "w: uint V 16, scales: V 2, biases: V 2"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "FUS101": (
        "q: B H L D, k: B G S D, v: B G S D, n: =H//G, scale: =0.3",
        "q: B H L D, k: B G S D, v: B G S D, n: =H//G, scale: =0.3, mask: B 1 L S",
    ),
    "FUS102": (
        *["q: B H L D, k: B H L D, v: B H L D, scale: =0.3"] * 3,
        *[f"{HEADS}, window: =2, scale: =0.3"] * 2,
        "",
    ),
    "FUS104": (
        "x: B L D",
        "q: B H L D, k: B H S D, mask: mask L S",
        "x: B L D",
        "x: B L D",
        "x: B L D, w: D",
        "x: B L D | dims: =D",
        "x: B L D | dims: =D",
        "",  # what a class calls of the one that it derives from is not run by itself
        "x: B L D",
    ),
    "FUS105": (
        "x: B L D | dims: =D",
        "x: B L D | dims: =D",
        "x: B L D, keep: bool B L D | dims: =D",
        "x: B L D, keep: bool B L D | dims: =D",
        *["x: B L D | dims: =D"] * 2,
        *["x: B L D"] * 3,
        "x: B L 8",
        "x: L 8",
    ),
    "FUS106": ("x: B L 48", "x: B L D, y: L D", *["m: bool B L D, x: B L D"] * 4, "x: B L D"),
    "FUS107": ("h: B L D | dims: =D, vocabulary: =V", f"{PACKED}, ids: int:B B L", "logits: B L V"),
    "FUS201": (
        *["x: B L D | dims: =D"] * 3,
        "x: B L D",
        "x: B L D, w: D",
        "x: B L D | dims: =D",
        "x: B L D, scale: B D, shift: B D",
    ),
    "FUS202": (
        *["x: B L D | dims: =D"] * 3,
        "x: B L D",
        "x: B L D, scale: B D, shift: B D",
        "x: B L D, w: D, b: D",
    ),
    "FUS203": ("x: B L D", "x: B L D", "x: 2 L 512", "x: B L D", "q: B L D"),
    "FUS204": ("x: B 6 S 5, groups: =3", "x: B L D, scale: D, shift: D", "x: B L S D"),
    "FUS205": ("x: B L D, w: D E", "x: B L 3 D, w: E 3*D"),
    "FUS211": ("x: B L 12 | dims: =12, heads: =3", f"{HEADS}, sinks: H, scale: =0.3", ""),
    "FUS221": (
        f"{ROTARY}, offset: =3",
        "x: B L H D",
        f"{ROTARY}, dims: =4, offset: =2",
        f"{ROTARY} | dims: =D, factor: =8.0",
        "",
        ROTARY,
    ),
    "FUS231": ("x: B L D | dims: =D, classes: =V", "h: L E, x: L D, w: D E", "x: B D L, codes: V D"),
    "FUS232": ("a: L D, w: D E", "a: L D, b: S D", "a: B L D, b: B S D", "a: B L D, w: D E"),
    "FUS241": (f"x: B L 128, {PACKED}",),
    "FUS251": ("x: B L D",) * 3,
    "FUS252": ("logits: B L V, targets: int:B B L",) * 4,
    "FUS261": ("x: B L D",) * 10,
    "FUS301": (
        "x: B L D | dims: =D, hidden_dims: =E",
        "x: B L D, alpha: D",
        "x: B L D | dims: =D, cap: =3.0",
        "g: B L D, u: B L D",
        "gate: B L D, up: B L D, most: =1.5",
        *[""] * 2,  # the layers themselves compute in float32
    ),
    "FUS402": ("q: B H L D, n: =L", "x: B H L D, n: =L"),
}
"""What the examples of the rules are called on, in their order, and after a bar what their `__init__` takes; "" for
advice on code that has no rewrite of its own."""

SPELLINGS = """
# FUS201 x: B L D, w: D
def f(x, w):
    s = mx.sum(mx.square(x), axis=-1, keepdims=True) / x.shape[-1]
    return w * (x / mx.sqrt(1e-5 + s))

# FUS201 x: B L D, w: D
def f(x, w):
    h = x.astype(mx.float32)
    h = h * (mx.power(h, 2).mean(-1, keepdims=True) + 1e-6) ** -0.5
    return (1 + w) * h.astype(x.dtype)

# FUS201 x: B L D, w: D
def f(x, w):
    n = mx.linalg.norm(x, axis=-1, keepdims=True)
    return x / n * math.sqrt(x.shape[-1]) * w

# FUS201 x: B L D, w: D
def f(x, w):
    r = mx.rsqrt(mx.mean(x * x, axis=-1) + 1e-5)
    return mx.multiply(x * mx.expand_dims(r, -1), w) + mx.exp(mx.max(x, axis=-1) * 2)[..., None]

# FUS201 x: B L D, w: D
def f(x, w=None):
    y = x * mx.reciprocal(mx.sqrt(x.square().mean(axis=-1, keepdims=True) + 1e-5))
    return y * w if w is not None else y

# FUS201 x: B L D, y: B L D, w: D
def f(x, y, w):
    h = x + y
    n = h * mx.rsqrt(mx.mean(h ** 2, axis=-1, keepdims=True) + 1e-5)
    return n * w, h

# FUS201 x: B L D, w: D, eps: =1e-6
def f(x, w, eps: float):
    B, L, D = x.shape
    s = (x * x).sum(-1, keepdims=True)
    return x * w * mx.rsqrt(s / D + eps)

# FUS201 x: B L D | dims: =D
class M(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.dims = dims
        self.weight = mx.ones((dims,))
        self.bias = mx.zeros((dims,))

    def __call__(self, x):
        x = x.astype(mx.float32)
        x = x / mx.sqrt(mx.sum(x * x, axis=-1, keepdims=True) / self.dims + 1e-5)
        return self.weight * x

# FUS202 x: B L D, w: D, b: D
def f(x, w, b):
    m = x.mean(-1, keepdims=True)
    v = mx.var(x, axis=-1, keepdims=True)
    return (x - m) * mx.rsqrt(v + 1e-5) * w + b

# FUS202 x: B L D, w: D, b: D
def f(x, w, b):
    m = mx.mean(x, axis=-1, keepdims=True)
    r = w * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) - m * m + 1e-5)
    return x * r + (b - m * r)

# FUS202 x: B L D | dims: =D
class M(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.bias = mx.zeros((dims,))

    def _centre(self, x):
        return x - mx.mean(x, axis=-1, keepdims=True)

    def __call__(self, x):
        c = self._centre(x)
        y = c / mx.sqrt(mx.mean(c * c, axis=-1, keepdims=True) + 1e-6)
        return y * self.weight + self.bias

# FUS202 x: B L D, y: B L D, w: D, b: D
def f(x, y, w, b):
    h = mx.add(x, y)
    h = h - h.mean(axis=-1, keepdims=True)
    h = h * mx.power(h.square().mean(axis=-1, keepdims=True) + 1e-5, -0.5)
    return mx.tanh(w * h + b) * y

# FUS203 x: B L D
def f(x):
    return x / mx.sqrt(mx.sum(x * x, axis=-1, keepdims=True) + 1e-6)

# FUS203 x: B L 16, w: 16
def f(x, w):
    n = mx.linalg.norm(x, ord=2, axis=-1, keepdims=True)
    return 0.25 * (x / n)

# FUS204 x: B L H D
def f(x):
    B, L, H, D = x.shape
    m = x.mean((-2, -1), keepdims=True)
    c = x - m
    return c * mx.rsqrt((c * c).mean((-2, -1), keepdims=True) + 1e-5)

# FUS202 x: B 12 S, w: 12, b: 12
def f(x, w, b):
    B, C, L = x.shape
    h = x.reshape(B, 4, -1)
    h = (h - h.mean(-1, keepdims=True)) / mx.sqrt(h.var(-1, keepdims=True) + 1e-5)
    return h.reshape(B, C, L) * w[:, None] + b[:, None]

# FUS205 x: B L D, w: E D
def f(x, w):
    s = mx.mean(mx.square(x), axis=-1, keepdims=True)
    return mx.matmul(x, w.T) / mx.sqrt(s + 1e-5)

# FUS211 q: B H L D, k: B H S D, v: B H S D, mask: mask L S
def f(q, k, v, mask):
    s = (q * (q.shape[-1] ** -0.5)) @ k.swapaxes(-1, -2)
    return mx.softmax(s + mask, axis=-1) @ v

# FUS211 q: B H L D, k: B H S D, v: B H S D
def f(q, k, v):
    s = mx.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return mx.matmul(mx.softmax(s.astype(mx.float32), axis=-1).astype(q.dtype), v).transpose(0, 2, 1, 3)

# FUS211 q: B L H D, k: B S H D, v: B S H D
def f(q, k, v):
    s = mx.einsum("blhd,bmhd->bhlm", q, k) * 0.3
    return mx.einsum("bhlm,bmhd->blhd", mx.softmax(s, axis=-1), v)

# FUS102 q: B H L D, k: B H L D, v: B H L D
def f(q, k, v):
    n = q.shape[2]
    hidden = 1 - mx.tril(mx.ones((n, n)))
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=(hidden * -1e9).astype(q.dtype))

# FUS211 q: B H L D, k: B H S D, v: B H S D, mask: mask L S
def f(q, k, v, mask):
    s = mx.matmul(q, mx.transpose(k, (0, 1, 3, 2))) * 0.125 + mask
    s = mx.exp(s - s.max(-1, keepdims=True))
    s = s / s.sum(-1, keepdims=True)
    return s @ v

# FUS211 q: B H L D, k: B H S D, v: B H S D, mask: bool L S
def f(q, k, v, mask):
    scores = (q @ k.transpose(0, 1, 3, 2)) * 0.3
    scores = mx.where(mask, scores, -1e9)
    return mx.softmax(scores, axis=-1) @ v

# FUS211 q: B H L D, k: B H S D, v: B H S D, mask: mask L S
def f(q, k, v, mask=None):
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + mask
    return mx.softmax(scores, axis=-1) @ v

# FUS211 x: B L 18, mask: mask L L | dims: =18, heads: =3
class M(nn.Module):
    def __init__(self, dims, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dims // heads) ** -0.5
        self.q = nn.Linear(dims, dims)
        self.k = nn.Linear(dims, dims)
        self.v = nn.Linear(dims, dims)

    def __call__(self, x, mask):
        B, L, D = x.shape
        q = self.q(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
        k = self.k(x).reshape(B, L, self.heads, -1).transpose(0, 2, 3, 1)
        v = self.v(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
        w = mx.softmax((q @ k) * self.scale + mask, axis=-1)
        return (w @ v).transpose(0, 2, 1, 3).reshape(B, L, -1)

# FUS211 q: B H L D, k: B H S D, v: B H S D
def f(q, k, v):
    s = mx.einsum("bhqd,bhkd->bhqk", 0.2 * q, k)
    return mx.einsum("bhqk,bhkd->bhqd", mx.softmax(s, axis=-1), v)

# FUS101 q: B H L D, k: B G S D, v: B G S D, n: =H//G
def f(q, k, v, n: int):
    B, G, S, D = k.shape
    k = mx.broadcast_to(k[:, :, None], (B, G, n, S, D)).reshape(B, G * n, S, D)
    B, G, S, D = v.shape
    v = mx.broadcast_to(v[:, :, None], (B, G, n, S, D)).reshape(B, G * n, S, D)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3)

# FUS101 q: B 6 L D, k: B 3 S D, v: B 3 S D
def f(q, k, v):
    k, v = mx.repeat(k, 2, axis=1), mx.repeat(v, 2, axis=1)
    return mx.softmax((q * 0.3) @ k.swapaxes(-1, -2), axis=-1) @ v

# FUS102 q: B H L D, k: B H L D, v: B H L D
def f(q, k, v):
    L = q.shape[2]
    mask = mx.triu(mx.full((L, L), -1e9), k=1)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask.astype(q.dtype))

# FUS102 q: B H L D, k: B H L D, v: B H L D
def f(q, k, v):
    L = q.shape[2]
    at = mx.arange(L)
    mask = at[:, None] >= at[None]
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)

# FUS221 x: B H L D
def f(x):
    a = mx.arange(x.shape[-2])[:, None] * (10000.0 ** (-mx.arange(0, x.shape[-1], 2) / x.shape[-1]))
    lo, hi = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return mx.concatenate([lo * mx.cos(a) - hi * mx.sin(a), lo * mx.sin(a) + hi * mx.cos(a)], axis=-1)

# FUS221 q: B H L D, k: B H L D, offset: =2
def f(q, k, offset: int):
    B, H, L, D = q.shape
    half = D // 2
    freqs = mx.exp(-mx.arange(0, half) * (math.log(1000.0) / half))
    t = mx.arange(offset, offset + L)
    angles = mx.outer(t, freqs)
    c, s = mx.cos(angles).astype(q.dtype), mx.sin(angles).astype(q.dtype)
    q1, q2 = q[..., :half], q[..., half:]
    k1, k2 = k[..., :half], k[..., half:]
    q = mx.concatenate([q1 * c - q2 * s, q2 * c + q1 * s], axis=-1)
    k = mx.concatenate([k1 * c - k2 * s, k2 * c + k1 * s], axis=-1)
    return q, k

# FUS221 x: B H L D
def f(x: mx.array):
    B, H, L, D = x.shape
    half = D // 2
    angles = mx.outer(mx.arange(L), 1.0 / (10000.0 ** (mx.arange(0, half) / half)))
    c, s = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return mx.stack([even * c - odd * s, even * s + odd * c], axis=-1).reshape(B, H, L, D)

# FUS231 x: B L D, w: E D, b: E
def f(x: mx.array, w: mx.array, b: mx.array):
    B, L, D = x.shape
    E, D = w.shape
    return mx.matmul(x, w.T) + b

# FUS231 x: L D, w: D E, r: L E | dims: =D, out: =E
class M(nn.Module):
    def __init__(self, dims, out):
        super().__init__()
        self.weight = mx.zeros((dims, out))
        self.bias = mx.zeros((out,))

    def __call__(self, x: mx.array, w: mx.array, r: mx.array):
        L, D = x.shape
        y = 2.0 * (x @ self.weight) + self.bias
        return y + 0.5 * mx.matmul(x, w), r - x @ w

# FUS232 a: L D, b: S D
def f(a: mx.array, b: mx.array):
    L, D = a.shape
    S, D = b.shape
    return mx.sum(a[:, None, :] * b[None, :, :], axis=2) * 0.5

# FUS232 a: B L D, b: B D E
def f(a: mx.array, b: mx.array):
    B, L, D = a.shape
    B, D, E = b.shape
    return mx.multiply(a[..., None], b[:, None]).sum(axis=-2)

# FUS241 x: B L 128, w: uint V 16, scales: V 2, biases: V 2
def f(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array):
    return mx.matmul(x, mx.dequantize(w, scales, biases, 64, 4).swapaxes(-1, -2)) + 1.0

# FUS251 x: B L D
def f(x: mx.array):
    e = mx.exp(x - mx.max(x, axis=-1, keepdims=True))
    return e / mx.sum(e, axis=-1, keepdims=True)

# FUS251 x: B L D, y: B L D
def f(x: mx.array, y: mx.array):
    return x - mx.logsumexp(x, axis=-1, keepdims=True) + mx.log(mx.sum(mx.exp(y), axis=-1, keepdims=True))

# FUS251 x: B L D
def f(x: mx.array):
    x = 0.5 * x
    w = mx.exp(x) * mx.reciprocal(mx.exp(x).sum(-1, keepdims=True))
    return mx.log(mx.softmax(w, -1))

# FUS252 logits: L V, targets: int:B L
def f(logits: mx.array, targets: mx.array):
    L, V = logits.shape
    logp = logits - mx.logsumexp(logits, axis=1, keepdims=True)
    return -mx.mean(mx.take_along_axis(logp, targets[..., None], axis=1)[:, 0])

# FUS252 logits: B L V, targets: int:B B L, m: bool B L
def f(logits: mx.array, targets: mx.array, m: mx.array):
    logits = logits / 1.5
    lse = mx.logsumexp(logits, axis=-1, keepdims=True)
    loss = (lse - mx.take_along_axis(logits, targets[..., None], axis=-1)).squeeze(-1)
    return (loss * m).sum()

# FUS261 x: B L D
def f(x: mx.array):
    return x * 0.5 * (1.0 + mx.tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x)))

# FUS261 x: B L D
def f(x: mx.array):
    return x / (1 + mx.exp(-x))

# FUS261 x: B L D, y: B L D
def f(x: mx.array, y: mx.array):
    g = x * (1 + mx.erf(x / math.sqrt(2.0))) / 2
    return g * y

# FUS301 x: B L D, y: B L D
def f(x: mx.array, y: mx.array):
    return nn.silu(x) * y + nn.gelu(y)

# FUS301 x: B L D, y: B L D
def f(x: mx.array, y: mx.array):
    s = mx.sqrt(mx.square(x) * mx.abs(y)) / (x * x + 0.3) - (x - y) / 3
    return s * s - x / (y * x) + mx.mean(3 * x * y + 0.5, axis=1, keepdims=True) * x.shape[1]

# FUS301 x: B L D, s: B D, t: D
def f(x: mx.array, s: mx.array, t: mx.array):
    h = mx.maximum(x, 0.0) ** 2
    h = mx.where(h > 0.5, h, mx.tanh(h) * 0.7)
    return h * (1 + s[:, None, :]) + t

# FUS301 x: B L D, noise: B L D, sigma: =0.7 | dims: =D, beta: =0.3
class M(nn.Module):
    def __init__(self, dims, beta):
        super().__init__()
        self.proj = nn.Linear(dims, dims)
        self.alpha = mx.zeros((dims,))
        self.beta = beta

    def __call__(self, x: mx.array, noise: mx.array, sigma: float):
        h = self.proj(x)
        h = h + mx.sin(self.alpha * h) ** 2 / (self.beta + 1e-6)
        return mx.clip(h, -2.0, 2.0) * mx.sigmoid(noise * 0.5) - noise

# FUS104 x: B L D, y: B L D
def f(x, y):
    w = mx.softmax((x * y).astype(mx.float32), axis=-1, precise=True).astype(x.dtype)
    return w * y

# FUS105 x: B L D, m: bool L L
def f(x: mx.array, m: mx.array):
    x = x.astype(mx.bfloat16)
    scores = x @ x.swapaxes(-1, -2)
    scores = mx.where(m, scores, mx.array(-1e9))
    return mx.softmax(scores, axis=-1) @ (x * mx.array(0.125))

# FUS106 m: bool B L D, x: B L D, y: B L D
def f(m: mx.array, x: mx.array, y: mx.array):
    B, L, D = x.shape
    h = x + y
    h = mx.where(m, h, mx.zeros_like(h))
    return mx.tanh(h[0] + y[1]) * mx.minimum(x, mx.zeros_like(x)).astype(mx.float32).astype(x.dtype)

# FUS107 h: B L D | dims: =D, vocabulary: =V
class M(nn.Module):
    def __init__(self, dims, vocabulary):
        super().__init__()
        self.head = nn.Linear(dims, vocabulary, bias=False)

    def __call__(self, h: mx.array):
        B, L, D = h.shape
        logits = self.head(h * 0.5)
        last = logits[:, -1]
        return mx.softmax(last / 0.7, axis=-1)

# FUS107 ids: int:B B L, w: uint V 16, scales: V 2, biases: V 2
def f(ids: mx.array, w: mx.array, scales: mx.array, biases: mx.array):
    table = mx.dequantize(w, scales, biases, group_size=64, bits=4)
    return mx.take(table, ids, axis=0) * 2.0
"""


@cache
def forms() -> tuple[Form, ...]:
    return (*_examples(), *_spellings())


def _examples() -> tuple[Form, ...]:
    found = []
    for rule in rules():
        given = EXAMPLES.get(rule.code, ())
        if given:
            assert len(given) == len(rule.examples), f"what do the examples of {rule.code} take?"
        for number, (example, takes) in enumerate(zip(rule.examples, given, strict=False)):
            if takes:
                found.append(_form(f"{rule.code} example {number}", example.source.lstrip("\n"), takes))
    return tuple(found)


def _spellings() -> tuple[Form, ...]:
    found = []
    for number, block in enumerate(SPELLINGS.strip("\n").split("\n# ")):
        head, _, source = block.removeprefix("# ").partition("\n")
        code, _, takes = head.partition(" ")
        found.append(_form(f"{code} spelling {number}", HEAD + source.rstrip("\n") + "\n", takes))
    return tuple(found)


def _form(name: str, source: str, takes: str) -> Form:
    call, _, init = takes.partition("|")
    return Form(name, source, call.strip(), init.strip())
