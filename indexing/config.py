"""How an index is built."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class IndexConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``adsieve index build``.

    Args:
        precision: Of the stored vectors; biases are always fp32.
        engine: Runs the pin tower: a name of ``indexing.pin_engine``, or ``auto`` for the fastest that passes here.
        max_dropped_share: Share of the catalogue's ads that may be dropped for NaN, infinity or invalid features.
        batch_size: Ads that are embedded at once. A thousand keeps the towers' activations in the cache.
        threads: Batches that are embedded at the same time.
        checkpoint_ads: A build that is killed goes on after the last multiple of about so many ads.
    """

    precision: Literal["fp16", "fp32", "int8"] = "fp16"
    engine: str = "auto"
    max_dropped_share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    batch_size: Annotated[int, Meta(ge=1, le=65_536)] = 1024
    threads: Annotated[int, Meta(ge=1, le=256)] = 2
    checkpoint_ads: Annotated[int, Meta(ge=1)] = 200_000
