"""Plain NumPy forms of the heavy ranker's blocks: one row, one token, one head at a time, in float64."""

import numpy as np


def array(tensor):
    return tensor.detach().numpy().astype(np.float64)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms_norm(x, gain):
    return x / np.sqrt((x**2).mean() + 1e-6) * gain


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def swiglu(x, gate, up, down):
    """``x [T]``, gate and up ``[T, hidden]``, down ``[hidden, T]``."""
    return (silu(x @ gate) * (x @ up)) @ down


def group_token(flat, names, slices, weight, bias):
    """The token of one row: its features one after another, each with its block of rows of the weight."""
    token, at = bias.copy(), 0
    for name in names:
        piece = next(piece for piece in slices if piece.name == name)
        token += flat[piece.start : piece.start + piece.width] @ weight[at : at + piece.width]
        at += piece.width
    return token


def attend(query, events, decoder):
    """One query ``[T]`` over the true events ``[n, T]`` of one row."""
    if len(events) == 0:
        return query
    dim, heads = decoder.head_dim, decoder.num_heads
    to = {name: array(getattr(decoder, f"to_{name}").weight).T for name in ("query", "key", "value", "out")}
    temperature = np.clip(array(decoder.temperature), 0.1, 10.0)
    q, k, v = rms_norm(query, array(decoder.norm.gain)) @ to["query"], events @ to["key"], events @ to["value"]
    read = []
    for head in range(heads):
        at = slice(head * dim, (head + 1) * dim)
        scores = np.array([q[at] @ key[at] for key in k]) / (np.sqrt(dim) * temperature[head])
        read.append(softmax(scores) @ v[:, at])
    return query + np.concatenate(read) @ to["out"]


def mix_tokens(tokens, mixer):
    """The token mixer on one row's tokens ``[N, T]``."""
    count, dim = tokens.shape
    width = dim // mixer.num_slices
    layer, norm = mixer.mixed_layer, array(mixer.mixed_norm.gain)
    reverted = np.empty_like(tokens)
    for h in range(mixer.num_slices):
        mixed = np.concatenate([token[h * width : (h + 1) * width] for token in tokens])
        mixed = mixed + swiglu(rms_norm(mixed, norm[h, 0]), *(array(w)[h] for w in (layer.gate, layer.up, layer.down)))
        for n in range(count):
            reverted[n, h * width : (h + 1) * width] = mixed[n * width : (n + 1) * width]
    layer, norm = mixer.token_layer, array(mixer.token_norm.gain)
    weights = [array(w) for w in (layer.gate, layer.up, layer.down)]
    rows = [swiglu(rms_norm(reverted[n], norm[n, 0]), *(w[n] for w in weights)) for n in range(count)]
    return tokens + np.stack(rows)


def extract(x, layer, task):
    """What one task reads of one row ``x [D]``."""
    weights, bias = array(layer.experts), array(layer.expert_bias)
    own = layer.shared_experts + task * layer.task_experts
    experts = [*range(layer.shared_experts), *range(own, own + layer.task_experts)]
    gate = softmax(x @ array(layer.gates)[task])
    return sum(g * np.maximum(x @ weights[e] + bias[e, 0], 0.0) for g, e in zip(gate, experts, strict=True))


def head_logit(x, heads, task):
    for index, (weight, bias) in enumerate(zip(heads.weights, heads.biases, strict=True)):
        x = x @ array(weight)[task] + array(bias)[task, 0]
        if index < len(heads.weights) - 1:
            x = np.maximum(x, 0.0)
    return x[0]
