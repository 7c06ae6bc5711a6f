"""What a warm start carried over and what starts anew: a run keeps it beside its result."""

import msgspec


class WarmReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a warm start carried over.

    Args:
        source: What it began from.
        optimizer: Whether the optimisers' states came along.
        carried: Scalars of dense parameters, padding apart, and rows of tables.
        total: The same of the new model.
        anew: What starts anew, by name, with the reason.
        removed: Features of the source that the new schema lacks.
    """

    source: str
    optimizer: bool
    carried: dict[str, int]
    total: dict[str, int]
    anew: dict[str, str]
    removed: list[str]

    def text(self) -> str:
        """In words, a line a fact."""
        shares = [f"{self.carried[kind]:,} of {self.total[kind]:,} {kind}" for kind in self.carried]
        state = "with the optimisers' state" if self.optimizer else "without optimiser state, which it does not keep"
        lines = [f"warm start from {self.source}: {' and '.join(shares)} carried over, {state}"]
        lines += [f"  anew: {name}: {reason}" for name, reason in self.anew.items()]
        return "\n".join(lines + [f"  gone: {name}" for name in self.removed])
