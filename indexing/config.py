"""How an index is built."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class IndexConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``adsieve index build``.

    Args:
        precision: Of the stored vectors; biases are always fp32.
        max_dropped_share: Share of the catalogue's ads that may be dropped for NaN, infinity or invalid features.
        batch_size: Ads that are embedded at once. A thousand keeps the towers' activations in the cache.
        threads: Threads of the pin tower.
    """

    precision: Literal["fp16", "fp32"] = "fp16"
    max_dropped_share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    batch_size: Annotated[int, Meta(ge=1, le=65_536)] = 1024
    threads: Annotated[int, Meta(ge=1, le=256)] = 2
