"""Plain NumPy forms of the heavy ranker's blocks: one row, one token, one head at a time, in float64."""

import math

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


def tokens_of(flat, tokens):
    """All tokens ``[N, T]`` of one row's flat features."""
    columns, weight, bias = (
        tokens.columns.numpy().reshape(tokens.num_tokens, -1),
        array(tokens.weight),
        array(tokens.bias),
    )
    padded = np.append(flat, 0.0)
    return np.stack([padded[columns[n]] @ weight[n] + bias[n, 0] for n in range(tokens.num_tokens)])


def encode_events(events, encoder):
    """The true events ``[n, T]`` of one row as an encoder leaves them."""
    return _ENCODERS[type(encoder).__name__](events, encoder).reshape(-1, events.shape[1])


def _alone(events, encoder):
    return np.array([_refined(event, encoder.norm, encoder.feed_forward) for event in events])


def _refined(event, norm, layer):
    weights = [array(linear.weight).T for linear in (layer.gate, layer.up, layer.down)]
    return event + swiglu(rms_norm(event, array(norm.gain)), *weights)


def read_events(at, events, attention):
    """What event ``at`` reads of the events ``[n, T]`` that stand most recent first."""
    dim, heads = attention.head_dim, attention.num_heads
    to = {name: array(getattr(attention, f"to_{name}").weight).T for name in ("query", "key", "value", "out")}
    read = []
    for head in range(heads):
        own = slice(head * dim, (head + 1) * dim)
        q, slope = (events[at] @ to["query"])[own], array(attention.slopes)[head]
        keys, values = (events @ to["key"])[:, own], (events @ to["value"])[:, own]
        scores = [q @ key / np.sqrt(dim) - slope * abs(at - j) for j, key in enumerate(keys)]
        read.append(softmax(np.array(scores)) @ values)
    return np.concatenate(read) @ to["out"]


def _attending(events, encoder):
    kept = min(len(events), getattr(encoder, "length", len(events)))
    normed = np.array([rms_norm(event, array(encoder.attention_norm.gain)) for event in events])
    read = [events[at] + read_events(at, normed, encoder.attention) for at in range(kept)]
    return np.array([_refined(event, encoder.refine.norm, encoder.refine.feed_forward) for event in read])


_ENCODERS = {"SwiGluEncoder": _alone, "TransformerEncoder": _attending, "LongerEncoder": _attending}


def score_row(ranker, flat, sequences, ad_flat, pair_flat=None):
    """Per-impression probabilities ``[K]`` of one request and one ad; ``sequences`` hold the true events ``[n, E]``."""
    request = tokens_of(flat, ranker.request_tokens)
    ad = tokens_of(ad_flat, ranker.ad_tokens)
    if pair_flat is not None:
        ad = np.concatenate([ad, tokens_of(pair_flat, ranker.pair_tokens)])
    events = {}
    for name, project in zip(ranker.sequence_names, ranker.events, strict=True):
        weight, bias = array(project.project.weight).T, array(project.project.bias)
        events[name] = sequences[name] @ weight + bias
    x = features(ranker.backbone, request, ad, events)
    if ranker.products is not None:
        x = np.concatenate([x, products(request, ad, ranker.products.num_heads, ranker.products.normed)])
    tasks = range(ranker.extraction.num_tasks)
    logits = [head_logit(extract(x, ranker.extraction, task), ranker.heads, task) for task in tasks]
    return np.cumprod(sigmoid(np.array(logits)))


def products(request, ad, num_heads, normed):
    """Dot products by slice, then request token, then ad token."""
    if normed:
        request, ad = (tokens / np.sqrt(np.mean(tokens**2, 1, keepdims=True) + 1e-6) for tokens in (request, ad))
    width = request.shape[1] // num_heads
    slices = [slice(h * width, (h + 1) * width) for h in range(num_heads)]
    return np.array([u[here] @ a[here] / np.sqrt(width) for here in slices for u in request for a in ad])


def features(backbone, request, ad, events):
    """What a backbone makes of one row: its tokens ``[N, T]`` of request and ad, and events ``[n, T]`` by sequence."""
    return _BACKBONES[type(backbone).__name__](backbone, request, ad, events)


def hyformer(backbone, request, ad, events):
    tokens = None
    for layer in backbone.layers:
        events = {
            name: encode_events(events[name], encoder)
            for name, encoder in zip(layer.sequence_names, layer.encoders, strict=True)
        }
        if tokens is None:
            tokens = np.concatenate([queries_of(backbone.generation, request, pool(events, request), ad), request, ad])
        tokens = mix_tokens(decode(tokens, events, layer), layer.mixer)
    return tokens.reshape(-1)


def pool(events, like):
    """Mean event ``[S, T]`` of each sequence, zeros for an empty one."""
    means = [each.mean(0) if len(each) else np.zeros(each.shape[1]) for each in events.values()]
    return np.stack(means) if means else like[:0]


def decode(tokens, events, layer):
    """Tokens with each query attended to its sequence."""
    tokens, size = tokens.copy(), layer.queries_per_sequence
    for at, name in enumerate(layer.sequence_names):
        for query in range(at * size, (at + 1) * size):
            tokens[query] = attend(tokens[query], events[name], layer.decoders[at])
    return tokens


def attended(behaviour, ad, events):
    """A token for each sequence ``[S, T]``: its events weighted one by one by their fit to the ad."""
    found = []
    for name, encoder, unit in zip(behaviour.sequence_names, behaviour.encoders, behaviour.attentions, strict=True):
        target = dense(ad.reshape(-1), behaviour.target)
        total = np.zeros_like(target)
        for event in encode_events(events[name], encoder):
            weight = np.concatenate(
                [array(part.weight) for part in (unit.event_in, unit.target_in, unit.product_in)], 1
            )
            known = np.concatenate([event, target, event * target])
            hidden = silu(weight @ known + array(unit.event_in.bias))
            total += dense(hidden, unit.out)[0] * event
        found.append(total)
    return np.array(found).reshape(-1, ad.shape[1])


def dense(x, linear):
    return array(linear.weight) @ x + (0.0 if linear.bias is None else array(linear.bias))


def layer_norm(x, norm):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * array(norm.weight) + array(norm.bias)


def din_dcn(backbone, request, ad, events):
    first = np.concatenate([request, ad, attended(backbone.behaviour, ad, events)]).reshape(-1)
    x = first
    for layer in backbone.cross_layers:
        x = first * (array(layer.up.weight) @ (array(layer.down.weight) @ x) + array(layer.up.bias)) + x
    for layer in backbone.deep:
        x = dense(x, layer) if hasattr(layer, "weight") else np.maximum(x, 0.0)
    return x


def masknet(backbone, request, ad, events):
    tokens = np.concatenate([request, ad, attended(backbone.behaviour, ad, events)])
    x = np.concatenate([layer_norm(token, backbone.norm) for token in tokens])
    for block in backbone.blocks:
        weight = np.concatenate([array(part.weight) for part in (block.mask_in.request_in, block.mask_in.ad_in)], 1)
        hidden = np.maximum(weight @ tokens.reshape(-1) + array(block.mask_in.request_in.bias), 0.0)
        x = np.maximum(layer_norm(dense(x * dense(hidden, block.mask_out), block.linear), block.norm), 0.0)
    return x


def rankmixer(backbone, request, ad, events):
    filling = [] if backbone.filling is None else [array(backbone.filling)[:, 0]]
    tokens = np.concatenate([request, ad, attended(backbone.behaviour, ad, events), *filling])
    count, width = len(tokens), tokens.shape[1] // len(tokens)
    for block in backbone.blocks:
        layer, following = block.feed_forward, np.empty_like(tokens)
        for h in range(count):
            mixed = np.concatenate([token[h * width : (h + 1) * width] for token in tokens])
            mixed = layer_norm(mixed + tokens[h], block.mixed_norm)
            hidden = gelu(mixed @ array(layer.up)[h] + array(layer.up_bias)[h, 0])
            refined = hidden @ array(layer.down)[h] + array(layer.down_bias)[h, 0]
            following[h] = layer_norm(refined + mixed, block.token_norm)
        tokens = following
    return tokens.mean(0)


def gelu(x):
    return np.array([0.5 * value * (1.0 + math.erf(value / math.sqrt(2.0))) for value in x])


def ensemble(backbone, request, ad, events):
    return np.concatenate([features(member, request, ad, events) for member in backbone.members])


def mix_masked(request, others, mixer):
    """The token mixer on one row with weights that are zero from the others' slices to the request's."""
    own, count, dim = mixer.request, len(request), request.shape[1]
    tokens, width = np.concatenate([request, others]), dim // mixer.num_slices
    mixed_rows = np.empty_like(tokens)
    for h in range(mixer.num_slices):
        mixed = np.concatenate([token[h * width : (h + 1) * width] for token in tokens])
        parts = mixed[: count * width], mixed[count * width :]
        norms = own.mixed_norm.gain[h, 0], mixer.mixed_norm.gain[h, 0]
        normed = np.concatenate([rms_norm(part, array(gain)) for part, gain in zip(parts, norms, strict=True)])
        gate, up = (
            np.block([[array(rr)[h], array(ra)[h]], [np.zeros((aa.shape[1], rr.shape[2])), array(aa)[h]]])
            for rr, ra, aa in (
                (own.mixed_layer.gate, mixer.request_gate, mixer.gate),
                (own.mixed_layer.up, mixer.request_up, mixer.up),
            )
        )
        rr, aa = array(own.mixed_layer.down)[h], array(mixer.down)[h]
        down = np.block([[rr, np.zeros((len(rr), aa.shape[1]))], [np.zeros((len(aa), rr.shape[1])), aa]])
        mixed = mixed + swiglu(normed, gate, up, down)
        for n in range(len(tokens)):
            mixed_rows[n, h * width : (h + 1) * width] = mixed[n * width : (n + 1) * width]
    refined = []
    for n, row in enumerate(mixed_rows):
        part, at = (own, n) if n < count else (mixer, n - count)
        weights = [array(w)[at] for w in (part.token_layer.gate, part.token_layer.up, part.token_layer.down)]
        refined.append(swiglu(rms_norm(row, array(part.token_norm.gain)[at, 0]), *weights))
    return tokens + np.stack(refined)


def request_only(backbone, request, ad, events):
    others, count = None, len(request)
    for layer in backbone.layers:
        events = {
            name: encode_events(events[name], encoder)
            for name, encoder in zip(layer.sequence_names, layer.encoders, strict=True)
        }
        if others is None:
            others = np.concatenate([queries_of(backbone.generation, request, pool(events, request), ad), ad])
        mixed = mix_masked(request, decode(others, events, layer), layer.mixer)
        request, others = mixed[:count], mixed[count:]
    return mixed.reshape(-1)


_BACKBONES = {
    "RequestOnlyHyFormer": request_only,
    "HyFormer": hyformer,
    "DinDcn": din_dcn,
    "MaskNet": masknet,
    "RankMixer": rankmixer,
    "Ensemble": ensemble,
}


def queries_of(generation, request, pooled, ad):
    """Query tokens ``[Q, T]`` of one row, whichever way they are made."""
    if type(generation).__name__ == "OneTokenQueries":
        return one_token_queries(generation, pooled, ad)
    return all_token_queries(generation, request, pooled, ad)


def all_token_queries(generation, request, pooled, ad):
    """``[Q, T]`` from the tokens ``[N, T]`` and pooled sequences ``[S, T]`` of one row."""
    weight = np.concatenate([array(generation.request_in.weight), array(generation.ad_in.weight)], 1)
    known = np.concatenate([request.reshape(-1), pooled.reshape(-1), ad.reshape(-1)])
    hidden = silu(weight @ known + array(generation.request_in.bias)).reshape(generation.num_queries, -1)
    parts = zip(hidden, array(generation.out), array(generation.out_bias), strict=True)
    return np.stack([h @ out + bias[0] for h, out, bias in parts])


def one_token_queries(generation, pooled, ad):
    """``[Q, T]`` from the pooled sequences ``[S, T]`` and the ad's tokens ``[N, T]`` of one row."""
    per_sequence = generation.num_queries // len(pooled)
    queries = []
    for i in range(generation.num_queries):
        known = np.concatenate([pooled[i // per_sequence], ad[i % len(ad)]])
        weight = np.concatenate([array(generation.pooled_in)[i], array(generation.token_in)[i]])
        hidden = silu(known @ weight + array(generation.bias)[i, 0])
        queries.append(hidden @ array(generation.out)[i] + array(generation.out_bias)[i, 0])
    return np.stack(queries)
