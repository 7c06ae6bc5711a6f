"""The learning rate of each step as a share of the peak: a linear warm-up, then a linear decay."""


def learning_rate_factor(step: int, *, total_steps: int, warmup_steps: int, final_factor: float) -> float:
    """Share of the peak learning rate at one step.

    Rises as ``(step + 1) / warmup_steps`` to 1, then falls linearly to ``final_factor`` at the last step.

    Args:
        step: From 0.
        total_steps: Steps in all; later ones stay at ``final_factor``.
        warmup_steps: Steps of the rise.
        final_factor: Share that is left in the end.

    Example:
        >>> [learning_rate_factor(step, total_steps=6, warmup_steps=2, final_factor=0.0) for step in range(6)]
        [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    peak = max(warmup_steps - 1, 0)
    progress = min((step - peak) / max(total_steps - 1 - peak, 1), 1.0)
    return 1.0 - progress * (1.0 - final_factor)
