"""How an index is built."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class IndexConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``adsieve index build``.

    Args:
        precision: Of the stored vectors; biases are always fp32. What it loses is measured on ads of every batch; a
            build that loses too much fails.
        engine: Runs the pin tower: ``auto`` takes the fastest that keeps the bundle's parity rows on this machine.
        max_dropped_share: Share of the catalogue's ads that may be dropped for NaN, infinity or invalid features.
        batch_size: Ads that are read and encoded at once; the pin tower takes them in pieces that fit its cache.
        threads: Batches that are embedded at once, each on a thread of its own.
        checkpoint_ads: A build that was killed goes on after the last ads that it brought to disk, about so many at
            once.
        flat_below: A head's ads, up to so many, are all compared by a search without candidates; more are divided into
            lists, of which it looks into some.
        retrieval_recall: Share of the best ads by exact utility that a search of lists has to find, on the bundle's
            saved requests.
    """

    precision: Literal["fp16", "fp32", "int8"] = "fp16"
    engine: Literal["auto", "onnxruntime_cpu", "openvino_fp32", "openvino_bf16", "torch_cuda", "tensorrt"] = "auto"
    max_dropped_share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    batch_size: Annotated[int, Meta(ge=1, le=65_536)] = 16_384
    threads: Annotated[int, Meta(ge=1, le=256)] = 2
    checkpoint_ads: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 200_000
    flat_below: Annotated[int, Meta(ge=0, le=10_000_000_000)] = 100_000
    retrieval_recall: Annotated[float, Meta(ge=0.5, le=1)] = 0.99
