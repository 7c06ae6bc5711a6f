"""Which floating-point type the dense layers of a step compute in."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["fp32", "bf16", "auto"]


def has_bf16(device: torch.device | str) -> bool:
    """Whether matrix products in BF16 have instructions of their own on this device.

    Without them a CPU emulates BF16, more slowly than it computes in fp32.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())


def resolve(precision: Precision, device: torch.device | str) -> Literal["fp32", "bf16"]:
    """``auto`` becomes BF16 where the device has instructions for it, else fp32; other values are taken as they are.

    Example:
        >>> resolve("fp32", "cpu")
        'fp32'
    """
    if precision == "auto":
        return "bf16" if has_bf16(device) else "fp32"
    return precision


def autocast(precision: Literal["fp32", "bf16"], device: torch.device | str) -> AbstractContextManager[object]:
    """The context of a forward pass: BF16 matrix products with weights kept in fp32, or nothing for fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


def to_autocast(x: Tensor) -> Tensor:
    """A model's input in the type that autocast computes in; as it is outside of autocast.

    Products round their inputs anyway. Rounding once at the entrance lets sums, norms and activations between the
    products, and what backward keeps of them, take half the memory.

    Example:
        >>> with autocast("bf16", "cpu"):
        ...     to_autocast(torch.zeros(1)).dtype
        torch.bfloat16
        >>> to_autocast(torch.zeros(1)).dtype
        torch.float32
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
