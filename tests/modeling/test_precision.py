"""BF16 only where it was asked for or is native."""

import pytest
import torch

from modeling.precision import autocast, has_bf16, resolve, to_autocast


def test_auto_is_bf16_exactly_where_the_device_has_it() -> None:
    assert resolve("auto", "cpu") == ("bf16" if has_bf16("cpu") else "fp32")
    assert resolve("bf16", "cpu") == "bf16"


@pytest.mark.parametrize(("precision", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_products_compute_in_it_and_weights_stay_fp32(precision: str, expected: torch.dtype) -> None:
    layer = torch.nn.Linear(4, 4)
    with autocast(precision, "cpu"):  # type: ignore[arg-type]
        found = layer(torch.ones(2, 4))
    found.sum().backward()
    assert found.dtype == expected
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32


def test_inputs_are_rounded_under_autocast_only() -> None:
    x = torch.tensor([1.0, 1 / 3])
    assert to_autocast(x) is x
    with autocast("fp32", "cpu"):
        assert to_autocast(x) is x
    with autocast("bf16", "cpu"):
        torch.testing.assert_close(to_autocast(x), x.bfloat16())
