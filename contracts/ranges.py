"""Numbers of a configuration with the range that they may have; whatever is outside is refused where a file is read.

NaN is in no range, and each ends below infinity.
"""

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
CountOrZero = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Width = Annotated[int, Meta(ge=1, le=16_384)]
"""Of a layer: more is a slip of the pen, and its square would not fit any machine."""
Few = Annotated[int, Meta(ge=1, le=256)]
FewOrNone = Annotated[int, Meta(ge=0, le=256)]
"""Layers, heads, experts, tokens, factors."""
Events = Annotated[int, Meta(ge=1, le=65_536)]
"""Of a history, as the schema bounds its length."""
BatchSize = Annotated[int, Meta(ge=1, le=16_777_216)]
Rate = Annotated[float, Meta(gt=0, le=1_000)]
Decay = Annotated[float, Meta(ge=0, le=1_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]
Weight = Annotated[float, Meta(ge=0, le=1_000_000)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
