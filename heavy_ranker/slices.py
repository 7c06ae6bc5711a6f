"""How slices of tokens change places: the one copy of the token mixer, in training on a CPU by an operator of its own.

A slice is 8 or 16 numbers wide, and a copy that goes number by number, or has all tokens' rows open at once, takes ten
times as long as one that moves a slice at a time. A compiler that fuses the copy into what comes before and after it
loses vector instructions in all of them. Graph engines have kernels of their own, so exports keep the plain form.
"""

from typing import Any

import torch
from torch import Tensor

_ITEMS = (torch.complex128, torch.int64, torch.int32)
"""Types of 16, 8 and 4 bytes, for moving neighbouring numbers as one."""


def swap_slices(x: Tensor) -> Tensor:
    """``[N, B, H, W]`` to ``[H, B, N * W]``: slice h of every one of N tokens, side by side.

    Example:
        >>> swap_slices(torch.arange(8.0).reshape(2, 1, 2, 2)).tolist()
        [[[0.0, 1.0, 4.0, 5.0]], [[2.0, 3.0, 6.0, 7.0]]]
    """
    if x.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_exporting():
        return _swapped(x)
    num_tokens, rows, num_slices, width = x.shape
    # Widths are written out, not -1: graph engines fuse a norm only where they know the width of its input.
    return x.permute(2, 1, 0, 3).reshape(num_slices, rows, num_tokens * width)


@torch.library.custom_op("adsieve::swap_slices", mutates_args=(), device_types="cpu")
def _swapped(x: Tensor) -> Tensor:
    num_tokens, rows, num_slices, width = x.shape
    swapped = x.new_empty(num_slices, rows, num_tokens, width)
    item = next((item for item in _ITEMS if width * x.itemsize % item.itemsize == 0), x.dtype)
    target = swapped.view(item)
    for token, slices in enumerate(x.contiguous().view(item)):
        target[:, :, token].copy_(slices.transpose(0, 1))
    return swapped.flatten(2)


@_swapped.register_fake
def _(x: Tensor) -> Tensor:
    num_tokens, rows, num_slices, width = x.shape
    return x.new_empty(num_slices, rows, num_tokens * width)


def _keep_shape(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.num_tokens = inputs[0].shape[0]


def _swap_back(ctx: Any, gradient: Tensor) -> Tensor:
    """The swap of the gradient's slices: what stood at token n, slice h, stands at token h, slice n."""
    num_slices, rows, dim = gradient.shape
    swapped: Tensor = _swapped(gradient.reshape(num_slices, rows, ctx.num_tokens, dim // ctx.num_tokens))
    return swapped.unflatten(2, (num_slices, dim // ctx.num_tokens))


_swapped.register_autograd(_swap_back, setup_context=_keep_shape)
