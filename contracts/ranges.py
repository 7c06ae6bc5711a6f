"""Numbers of a configuration with the range that they may have; whatever is outside is refused where a file is read.

NaN is in no range, and each ends below infinity.
"""

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
CountOrZero = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Rate = Annotated[float, Meta(gt=0, le=1_000)]
Decay = Annotated[float, Meta(ge=0, le=1_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]
Weight = Annotated[float, Meta(ge=0, le=1_000_000)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
