"""A call or more of each op of the table. x, y: (2, 3, 4); the other arguments are in ARRAYS."""

from __future__ import annotations

FLOATING = {
    "x": (2, 3, 4), "y": (2, 3, 4), "v": (4,), "m": (4, 4), "q": (2, 4, 3, 8), "k": (2, 2, 6, 8),
    "image": (2, 9, 9, 3), "sequence": (2, 9, 3), "volume": (2, 5, 5, 5, 3), "filters1": (5, 3, 3),
    "filters2": (5, 3, 3, 3), "filters3": (5, 3, 3, 3, 3), "mask": (3, 6), "wide": (2, 64), "rows": (32, 32),
    "tokens": (2, 1, 4), "experts": (3, 4, 5), "wide_tokens": (2, 1, 64), "scales": (8, 1), "offsets": (8, 1),
    "expert_scales": (3, 8, 1), "z": (2, 3, 4), "n": (4, 4),
}  # fmt: skip
"""Arguments that have the dtype under test."""

FIXED = {
    "i": ((2, 2), "int32"), "j": ((2, 2), "int32"), "i3": ((2, 3, 2), "int32"), "b": ((2, 3, 4), "bool_"),
    "bmask": ((3, 6), "bool_"), "labels": ((2, 3), "int32"), "packed": ((8, 8), "uint32"),
    "packed_experts": ((3, 8, 8), "uint32"), "experts_of": ((2,), "uint32"), "start": ((1,), "int32"),
    "key": ((2,), "uint32"), "f32": ((4,), "float32"), "bytes": ((2, 3), "uint8"), "segments": ((3, 2), "uint32"),
    "f": ((4, 4), "float32"),
}  # fmt: skip

ELEMENTWISE = """
mx.abs(x) | mx.negative(x) | -x | mx.sign(x) | mx.square(x) | mx.sqrt(x) | x.rsqrt() | mx.exp(x) | mx.expm1(x)
mx.log(x) | mx.log2(x) | mx.log10(x) | x.log1p() | mx.erf(x) | mx.erfinv(x) | mx.sin(x) | x.cos() | mx.tan(x)
mx.arcsin(x) | mx.acos(x) | mx.arctan(x) | mx.sinh(x) | mx.cosh(x) | mx.tanh(x) | mx.arcsinh(x) | mx.acosh(x)
mx.arctanh(x) | mx.sigmoid(x) | mx.floor(x) | mx.ceil(x) | mx.trunc(x) | mx.logical_not(x) | ~b | mx.conj(x)
mx.real(x) | mx.imag(x) | mx.round(x) | x.round(2) | mx.stop_gradient(x) | mx.positive(x) | x.astype(mx.float32)
x.astype(mx.bfloat16) | x.astype(y.dtype) | mx.astype(x, mx.int32) | mx.reciprocal(x) | mx.degrees(x) | mx.radians(x)
mx.isnan(x) | mx.isinf(x) | mx.isfinite(x) | mx.isposinf(x) | mx.isneginf(x) | mx.nan_to_num(x) | mx.view(x, mx.int16)
x.view(mx.int32) | x + y | x - y | x * y | x / y | x // y | x % y | x ** y | mx.maximum(x, y) | mx.minimum(x, y)
mx.logaddexp(x, y) | mx.arctan2(x, y) | x == y | x != y | x < y | x <= y | x > y | x >= y | mx.logical_and(x, y)
mx.logical_or(x, y) | mx.logical_xor(x, y) | i & i | i | x * v | x + m[:, :1, None][:2, :1] | v - x | x * f32 | i3 | i
mx.bitwise_or(i, i) | mx.bitwise_xor(i, i) | i ^ 3 | i << 1 | mx.right_shift(i, i) | b << b | b & b
mx.where(b, x, y) | mx.where(x, x, y) | mx.where(b, 0.0, -math.inf) | mx.where(b, x, 0.0) | mx.where(b, x, 1)
mx.where(b, 1, 0) | mx.where(b, x, -mx.inf) | mx.where(x > 0, x, mx.array(0.0)) | mx.where(b, x, v) | mx.clip(x, 0, 1)
mx.clip(x, 0.0, 1.0) | mx.clip(x, 0.5, None) | mx.clip(x, None, v) | mx.clip(x, a_max=2, a_min=None)
mx.isclose(x, y) | mx.allclose(x, y) | mx.array_equal(x, y) | mx.divmod(x, y) | x * 2 | x * 2.5 | 2.5 * x | x / 2
2 / x | x // 2 | x % 2 | x // 2.0 | x ** 2 | x ** 2.0 | x ** 0.5 | 2 ** x | x > 0 | x > 0.5 | x == 1 | x * True
1 - x | x * math.sqrt(8) | x * 8**-0.5 | x * mx.pi | b * 2 | b * 2.0 | b + b | mx.logaddexp(x, 0.0) | mx.maximum(x, 0)
mx.exp(1.0) | mx.exp(1) | mx.add(1, 2) | mx.add(1, 2.0) | mx.sqrt(2) | x * mx.array(0.5) | x * mx.array(2)
mx.power(x, mx.array(2.0)) | mx.logaddexp(x, mx.array(0.0)) | x * mx.sqrt(2.0) | x * mx.exp(1.0) | x * i[0, 0]
x / i[0, 0] | x + bytes[0, 0] | x * b | x + mx.arange(4) | x * (1 / i[0, 0]) | x * (i[0, 0] ** -0.5) | i / 2 | i * 0.5
x + mx.ones(4) | x + mx.zeros_like(x) | x * mx.where(b, 1.0, 0.0) | mx.where(b, 0.0, -1e9) + x
mx.where(b, mx.array(0.0, x.dtype), -1e9) + x | x + mx.arange(4.0) | x + mx.eye(4)[0]
mx.concatenate([x, mx.zeros((1, 3, 4))]) | mx.concatenate([x, mx.zeros((1, 3, 4), x.dtype)])
mx.hadamard_transform(x) | mx.to_fp8(x) | mx.from_fp8(bytes)
"""

REDUCTIONS = """
x.sum() | x.sum(-1) | mx.sum(x, axis=-1, keepdims=True) | mx.sum(x, axis=(1, 2)) | mx.sum(x, keepdims=True)
mx.sum(x, axis=[0, -1]) | mx.prod(x, -1) | x.max(-1) | mx.min(x, axis=0, keepdims=True) | mx.all(x) | mx.any(x, -1)
b.sum() | bytes.sum(-1) | x.argmax(-1) | mx.argmin(x) | mx.argmax(x, keepdims=True) | x.argmin(axis=0, keepdims=True)
mx.logsumexp(x) | mx.logsumexp(x, -1) | mx.logsumexp(x, axis=-1, keepdims=True) | mx.logsumexp(x, 1)
x.logsumexp(axis=1, keepdims=True) | mx.logsumexp(v) | mx.mean(x) | mx.mean(x, -1) | x.mean(-1, keepdims=True)
mx.var(x) | mx.var(x, -1) | mx.var(x, -1, keepdims=True) | x.var(-1, ddof=1) | mx.var(x, -1, correction=1)
mx.std(x, -1) | x.std(-1, True)
mx.median(x) | mx.median(x, -1) | mx.median(x, -1, keepdims=True) | mx.count_nonzero(x) | mx.count_nonzero(x, axis=-1)
mx.minmax(x, -1) | mx.minmax(x, axis=0, keepdims=True) | mx.cumsum(x, -1) | x.cumsum()
mx.cumsum(x, -1, dtype=mx.float32) | mx.cumprod(x, axis=-1) | mx.cummax(x, -1) | x.cummin(0) | b.cumsum(0)
mx.cumprod(b, 0) | mx.softmax(x) | mx.softmax(x, -1) | mx.softmax(x, axis=1) | mx.softmax(x, -1, precise=True)
mx.softmax(x, axis=(1, 2)) | mx.softmax(x, axis=2) | mx.softmax(v) | mx.sort(x) | mx.sort(x, axis=None)
mx.argsort(x) | mx.partition(x, 2) | mx.argpartition(x, -2, axis=-1) | mx.topk(x, 2) | mx.topk(x, 2, axis=None)
mx.searchsorted(v, x)
"""

VIEWS = """
mx.reshape(x, (6, 4)) | x.reshape(2, -1) | x.reshape(2, 3, 4) | x.reshape(2, 3, -1) | x.reshape((-1,)) | x.reshape(-1)
x.reshape([3, 8]) | x.reshape(*x.shape[:-1], 2, -1) | x.reshape(x.shape[0], -1) | x.reshape(x.shape[:-1] + (2, 2))
x.reshape(y.shape) | mx.flatten(x) | x.flatten(1) | x.flatten(1, 1) | x.flatten(-2, -1) | mx.unflatten(x, -1, (2, 2))
mx.unflatten(x, -1, (2, -1)) | mx.unflatten(x, axis=0, shape=(1, 2)) | mx.squeeze(x.reshape(2, 1, 12), 1)
mx.squeeze(mx.expand_dims(x, 0)) | x[None, ..., None].squeeze((0, -1)) | mx.expand_dims(x, -1)
mx.expand_dims(x, (0, 3)) | x.transpose(0, 2, 1) | x.transpose([1, 0, 2]) | x.transpose() | x.T | x.mT
mx.transpose(x) | mx.transpose(x, (2, 0, 1)) | mx.permute_dims(x, (2, 0, 1)) | mx.matrix_transpose(x)
mx.swapaxes(x, 0, 1) | x.moveaxis(0, -1) | x.swapaxes(-1, -2) | mx.broadcast_to(v, (3, 4))
mx.broadcast_to(x, (2, 3, 4)) | mx.broadcast_arrays(x, v) | mx.as_strided(x, (3, 2), (1, 2)) | mx.split(x, 2, axis=-1)
x.split([1, 3], axis=-1) | mx.split(x, 2) | mx.unstack(x, axis=0) | mx.unstack(x, axis=-1) | mx.diagonal(m)
mx.flip(x, -1) | mx.atleast_1d(x) | mx.atleast_2d(v) | mx.atleast_3d(v) | mx.atleast_3d(m) | mx.meshgrid(v, f32)
mx.concatenate([x, y], axis=-1) | mx.concatenate([x, y]) | mx.concatenate([x, y], axis=None) | mx.concat((x, y), 1)
mx.concatenate([x] * 2, axis=1) | mx.concatenate([x]) | mx.stack([x, y]) | mx.stack([x, y], axis=-1)
mx.repeat(x, 2, axis=1) | mx.repeat(x, 2) | mx.tile(x, (1, 2, 1)) | mx.tile(v, (3, 1)) | mx.tile(x, 2) | mx.pad(x, 1)
mx.pad(x, [(0, 0), (1, 2), (0, 0)]) | mx.pad(x, (1, 2)) | mx.pad(x, ((0, 0), (0, 0), (1, 0)), mode="edge")
mx.roll(x, 1, 1) | mx.roll(x, 1) | mx.tril(m) | mx.triu(m, 1) | mx.tril(x) | mx.diff(x) | mx.kron(m, n)
mx.contiguous(x) | mx.trace(m) | mx.diag(m) | mx.diag(v) | mx.depends(x, y)
"""

PRODUCTS = """
mx.matmul(x, m) | x @ m | q @ q.swapaxes(-1, -2) | x @ v | v @ m | v @ v | m @ m | v @ q.swapaxes(-1, -2)[..., :4, :]
mx.addmm(x, x, m) | mx.addmm(v, x, m, alpha=2.0) | mx.addmm(m, m, m) | mx.addmm(f32, x, m)
mx.einsum("bhld,bhsd->bhls", q, q) | mx.einsum("bld,de->ble", x, m) | mx.inner(m, n) | mx.inner(x, m) | mx.outer(v, v)
mx.tensordot(x, m, 1) | mx.tensordot(x, m, axes=[[2], [0]]) | mx.vecdot(x, y) | mx.vecdot(x, y, axis=0)
mx.conv1d(sequence, filters1) | mx.conv2d(image, filters2, stride=2, padding=1) | mx.conv3d(volume, filters3)
mx.conv1d(sequence, filters1, 2, 1, 2) | mx.conv_transpose1d(sequence, filters1, stride=2)
mx.conv_transpose2d(image, filters2, stride=2, padding=1, output_padding=1) | mx.conv_transpose3d(volume, filters3)
mx.conv_general(image, filters2, padding=(1, 1), flip=True) | mx.convolve(v, v) | mx.convolve(v, v, mode="same")
mx.quantized_matmul(wide, packed, scales, scales)
mx.quantized_matmul(wide, packed, scales=scales, biases=scales, transpose=True)
mx.quantized_matmul(wide[:, :8], packed, scales, scales, transpose=False) | mx.dequantize(packed, scales, offsets)
mx.quantize(wide) | mx.gather_qmm(wide_tokens, packed_experts, expert_scales, expert_scales, rhs_indices=experts_of)
mx.gather_mm(tokens, experts, rhs_indices=experts_of) | mx.gather_mm(tokens[:, None], experts, rhs_indices=i)
mx.block_masked_mm(rows, rows, 32) | mx.segmented_mm(m, m, segments) | mx.qqmm(wide, packed, scales)
"""

INDEXING = """
mx.take(x, i, axis=1) | mx.take(x, i) | mx.take(x, 1, axis=1) | mx.take(x, i, axis=0) | mx.take(x, i[0], axis=-1)
mx.take_along_axis(x, i3, axis=-1) | mx.put_along_axis(x, i3, x[..., :2], axis=-1)
mx.slice(x, start, [0], [1, 3, 4]) | mx.slice_update(x, x[:1], start, [0]) | x[0] | x[:, 0] | x[..., 1:3] | x[i]
x[:, i] | x[:, :, i] | x[i, i] | x[..., None] | x[:, None, 0] | x[..., ::2] | x[..., ::-1] | x[:] | x[...] | x[0, 1:]
x[-1] | x[:, -2:] | x[1:, :-1, 2:] | x[None] | x[i[0], 1:] | x[i, :, j] | x[..., i] | x[x.shape[0] - 1 :]
x[:, : x.shape[1] // 2] | x[..., 0, :]
"""

CREATION = """
mx.array(x) | mx.array(x, mx.float32) | mx.array(1.5) | mx.array([1, 2, 3]) | mx.array([1.0, 2.0]) | mx.array([True])
mx.array([[1, 2], [3, 4.0]]) | mx.array(3, dtype=mx.bfloat16) | mx.array([x, y]) | mx.asarray(x) | mx.zeros((2, 3))
mx.zeros(4, x.dtype) | mx.ones((2, 3), dtype=mx.float16) | mx.full((2, 3), 0.5) | mx.full((2, 3), 1)
mx.zeros(x.shape) | mx.ones(x.shape[:-1] + (1,)) | mx.ones([x.shape[0], *y.shape[1:]])
mx.full((2, 3), 0.5, dtype=mx.bfloat16) | mx.full((2, 4), v) | mx.full_like(x, 0.5) | mx.zeros_like(x)
mx.ones_like(x) | mx.ones_like(x, dtype=mx.float16) | mx.empty((2, 3)) | mx.empty_like(x) | mx.arange(8)
mx.arange(8.0) | mx.arange(1, 8, 2) | mx.arange(0, 8, 2.0) | mx.arange(8, dtype=mx.float16)
mx.arange(0, x.shape[-1]) | mx.arange(8, 0, -2) | mx.arange(0.5, 3) | mx.linspace(0, 1, 5) | mx.eye(3) | mx.eye(3, 4)
mx.identity(3) | mx.tri(3) | mx.tri(3, 4, 1, dtype=mx.bool_) | mx.bartlett(8) | mx.hanning(8) | mx.hamming(8)
mx.blackman(8)
"""

FAST = """
mx.fast.rms_norm(x, v, 1e-5) | mx.fast.rms_norm(x, None, 1e-5) | mx.fast.rms_norm(x, f32, eps=1e-5)
mx.fast.layer_norm(x, v, v, 1e-5) | mx.fast.layer_norm(x, None, None, 1e-5) | mx.fast.layer_norm(x, None, f32, 1e-5)
mx.fast.layer_norm(x, f32, None, 1e-5) | mx.fast.layer_norm(x, v, f32, eps=1e-5)
mx.fast.rope(q, 8, traditional=False, base=10000.0, scale=1.0, offset=0)
mx.fast.rope(q, 8, traditional=True, base=10000.0, scale=1.0, offset=2)
mx.fast.rope(q, 4, traditional=False, base=10000.0, scale=1.0, offset=0)
mx.fast.rope(q, 4, traditional=True, base=10000.0, scale=1.0, offset=0)
mx.fast.rope(q, 8, traditional=False, base=None, scale=1.0, offset=0, freqs=f32)
mx.fast.scaled_dot_product_attention(q, k, k, scale=0.5) | mx.fast.scaled_dot_product_attention(q, q, q, scale=0.5)
mx.fast.scaled_dot_product_attention(q, k, k, scale=0.5, mask="causal")
mx.fast.scaled_dot_product_attention(q, k, k, scale=0.5, mask=mask)
mx.fast.scaled_dot_product_attention(q, k, k, scale=0.5, mask=bmask)
mx.fast.scaled_dot_product_attention(q, k.astype(mx.float32), k, scale=0.5) | mx.fast.cross_entropy(x, labels)
"""

MODULES = """
mx.linalg.norm(x) | mx.linalg.norm(x, axis=-1) | mx.linalg.norm(x, axis=-1, keepdims=True) | mx.linalg.norm(x, 1, -1)
mx.linalg.norm(x, ord=3, axis=-1) | mx.linalg.norm(m, ord="fro") | mx.linalg.norm(x, axis=(1, 2))
mx.linalg.norm(m, 1) | mx.linalg.norm(x, -1, (0, 1), True) | mx.linalg.norm(v, 0) | mx.linalg.norm(v, float("inf"))
mx.matrix_norm(m) | mx.linalg.cross(sequence, sequence) | mx.random.normal((2, 3))
mx.random.normal((2, 3), dtype=mx.bfloat16) | mx.random.normal(x.shape, x.dtype, key=key)
mx.random.normal((2, 3), loc=1.0, scale=2.0) | mx.random.normal((2, 3), loc=1.0, scale=2.0, dtype=mx.bfloat16)
mx.random.uniform() | mx.random.uniform(shape=(2, 3)) | mx.random.uniform(-1, 1, (2, 3), key=key)
mx.random.uniform(shape=(2, 3), dtype=mx.float16) | mx.random.randint(0, 10, (2, 3)) | mx.random.bernoulli()
mx.random.bernoulli(0.5, (2, 3)) | mx.random.bernoulli(f32) | mx.random.truncated_normal(-1.0, 1.0, (2, 3))
mx.random.gumbel((2, 3)) | mx.random.categorical(f32) | mx.random.laplace((2, 3))
mx.random.categorical(f32[None], -1) | mx.random.categorical(f32[None], num_samples=3) | mx.random.permutation(8)
mx.random.permutation(f32) | mx.random.key(0) | mx.random.split(key) | mx.random.split(key, 3)
mx.random.categorical(f32, shape=(2, 3)) | mx.fft.fft(x) | mx.fft.rfft(x) | mx.fft.irfft(x) | mx.fft.ifft(x)
mx.fft.fft2(x) | mx.fft.rfft2(x) | mx.fft.fftn(x) | mx.fft.irfftn(x) | mx.fft.rfft(x, n=8) | mx.fft.fft(x, 2)
mx.fft.rfft(x, axis=1) | mx.fft.ifft2(x) | mx.fft.irfft2(x) | mx.fft.ifftn(x) | mx.fft.rfftn(x) | mx.fft.fftfreq(8)
mx.fft.rfftfreq(8) | mx.fft.fftshift(x) | mx.fft.ifftshift(x, axes=1)
"""

ACTIVATIONS = """
nn.silu(x) | nn.gelu(x) | nn.gelu_approx(x) | nn.gelu_fast_approx(x) | nn.relu(x) | nn.relu2(x) | nn.relu6(x)
nn.leaky_relu(x) | nn.softplus(x) | nn.log_sigmoid(x) | nn.softsign(x) | nn.softshrink(x) | nn.hard_shrink(x)
nn.hard_tanh(x) | nn.hardswish(x) | nn.mish(x) | nn.elu(x) | nn.selu(x) | nn.celu(x) | nn.prelu(x, v)
nn.prelu(x, f32) | nn.step(x) | nn.sigmoid(x) | nn.tanh(x) | nn.softmax(x) | nn.softmax(x, axis=1) | nn.softmin(x)
nn.log_softmax(x) | nn.log_softmax(x, axis=1) | nn.glu(x) | nn.MultiHeadAttention.create_additive_causal_mask(5)
nn.MultiHeadAttention.create_additive_causal_mask(5, mx.float16) | nn.layers.activations.silu(x)
nn.losses.mse_loss(x, y) | nn.losses.mse_loss(x, y, reduction="none") | nn.losses.l1_loss(x, y, reduction="none")
nn.losses.smooth_l1_loss(x, y, reduction="none") | nn.losses.huber_loss(x, y) | nn.losses.hinge_loss(x, y)
nn.losses.log_cosh_loss(x, y) | nn.losses.gaussian_nll_loss(x, y, y, reduction="none") | nn.losses.kl_div_loss(x, y)
nn.losses.margin_ranking_loss(x, y, y) | nn.losses.binary_cross_entropy(x, y, reduction="none")
nn.losses.cross_entropy(x, labels) | nn.losses.cross_entropy(x, labels, reduction="mean")
nn.losses.nll_loss(x, labels) | nn.losses.triplet_loss(x, y, z) | nn.losses.cosine_similarity_loss(x, y)
"""

LAYERS = """
nn.Linear(4, 6) @ (x) | nn.Linear(4, 6, bias=False) @ (x) | nn.Linear(4, 6) @ (m) | nn.Bilinear(4, 4, 5) @ (x, y)
nn.QuantizedLinear(64, 8) @ (wide) | nn.QuantizedLinear(64, 8, bias=False) @ (wide) | nn.Embedding(10, 6) @ (i)
nn.Embedding(10, 4) @ .as_linear(x) | nn.QuantizedEmbedding(16, 64) @ .as_linear(wide)
nn.QuantizedEmbedding(10, 64) @ (i) | nn.RMSNorm(4) @ (x) | nn.RMSNorm(4, eps=1e-6) @ (x) | nn.LayerNorm(4) @ (x)
nn.LayerNorm(4, affine=False) @ (x) | nn.LayerNorm(4, bias=False) @ (x) | nn.GroupNorm(2, 4) @ (x)
nn.GroupNorm(2, 4, pytorch_compatible=True) @ (x) | nn.GroupNorm(2, 4, affine=False) @ (x) | nn.InstanceNorm(4) @ (x)
nn.InstanceNorm(3) @ (image) | nn.InstanceNorm(4, affine=True) @ (x) | nn.BatchNorm(4) @ (x)
nn.Conv1d(3, 5, 3) @ (sequence) | nn.Conv1d(3, 5, kernel_size=3, stride=2, padding=1, bias=False) @ (sequence)
nn.Conv2d(3, 5, 3, padding=1) @ (image) | nn.Conv2d(3, 5, (3, 1), stride=(2, 1)) @ (image)
nn.Conv3d(3, 5, 3) @ (volume) | nn.ConvTranspose1d(3, 5, 3, stride=2) @ (sequence)
nn.ConvTranspose2d(3, 5, 3) @ (image) | nn.ConvTranspose3d(3, 5, 3) @ (volume)
nn.MaxPool1d(3, padding=1) @ (sequence) | nn.MaxPool1d(3) @ (sequence) | nn.AvgPool1d(3) @ (sequence)
nn.MaxPool2d(3, stride=2) @ (image) | nn.AvgPool2d(3, 3) @ (image) | nn.MaxPool3d(2) @ (volume)
nn.AvgPool3d(5) @ (volume) | nn.RoPE(8) @ (q) | nn.RoPE(4, traditional=True) @ (q, 3) | nn.ALiBi() @ (q)
nn.SinusoidalPositionalEncoding(8) @ (v) | nn.Dropout(0.1) @ (x) | nn.Dropout2d() @ (x) | nn.Dropout3d(0.2) @ (q)
nn.Identity() @ (x) | nn.Upsample(2) @ (image) | nn.Upsample(scale_factor=(2.0, 3.0)) @ (image)
nn.MultiHeadAttention(4, 2) @ (x, y, z) | nn.MultiHeadAttention(4, 2, bias=True) @ (x, y, z) | nn.RNN(4, 6) @ (x)
nn.GRU(4, 6) @ (x) | nn.LSTM(4, 6) @ (x) | nn.SiLU() @ (x) | nn.ReLU() @ (x) | nn.ReLU2() @ (x) | nn.ReLU6() @ (x)
nn.LeakyReLU(0.1) @ (x) | nn.Softplus() @ (x) | nn.LogSigmoid() @ (x) | nn.Softsign() @ (x) | nn.Softshrink() @ (x)
nn.HardShrink() @ (x) | nn.HardTanh() @ (x) | nn.Hardswish() @ (x) | nn.Mish() @ (x) | nn.ELU() @ (x)
nn.SELU() @ (x) | nn.CELU() @ (x) | nn.Step() @ (x) | nn.Sigmoid() @ (x) | nn.Tanh() @ (x) | nn.Softmax() @ (x)
nn.Softmin() @ (x) | nn.LogSoftmax() @ (x) | nn.GLU() @ (x) | nn.GELU() @ (x) | nn.GELU(approx="tanh") @ (x)
nn.GELU("fast") @ (x) | nn.PReLU() @ (x)
"""

LINALG = """
mx.linalg.qr(f) | mx.linalg.svd(f) | mx.linalg.inv(f) | mx.linalg.tri_inv(f) | mx.linalg.cholesky(f)
mx.linalg.cholesky_inv(f) | mx.linalg.pinv(f) | mx.linalg.eigvals(f) | mx.linalg.eig(f) | mx.linalg.eigvalsh(f)
mx.linalg.eigh(f) | mx.linalg.lu(f) | mx.linalg.lu_factor(f) | mx.linalg.solve(f, f)
mx.linalg.solve_triangular(f, f) | mx.linalg.det(f) | mx.linalg.slogdet(f)
"""


def split(text: str) -> list[str]:
    """The samples of a block: between bars, one line or more."""
    return [s.strip() for line in text.strip().splitlines() for s in line.split(" | ") if s.strip()]
