"""Tokenisation: a side's flat features become tokens of equal width, one for each semantic group or equal piece.

A token never mixes features of the query with features of the ad: the query's tokens are computed once for a request.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.errors import ConfigError
from contracts.layout import FlatSlice
from heavy_ranker.numeric import PiecewiseLinear

Groups = dict[str, tuple[str, ...]]


class GroupTokens(nn.Module):
    """Project each group of columns to one token.

    Computes ``token_n = W_n x[columns_n] + b_n``. Groups differ in width, so their columns are gathered into one padded
    block ``[N, B, W]`` (padding reads a column of zeros) and a single batched product projects them all.

    Source: semantic grouping as in HyFormer, arXiv:2601.12681, section on input tokens.

    Args:
        columns: For each token the columns of the flat input that it reads.
        in_dim: Width of the flat input, F.
        token_dim: Width of a token, T.
        numeric: Applied to the flat input before; ``columns`` and ``in_dim`` are then of what it gives.

    Raises:
        ValueError: a group is empty or names a column outside the input.

    Example:
        >>> tokens = GroupTokens([[0, 2], [1]], in_dim=3, token_dim=4)
        >>> tokens(torch.ones(5, 3)).shape
        torch.Size([2, 5, 4])
    """

    def __init__(
        self,
        columns: Sequence[Sequence[int]],
        in_dim: int,
        token_dim: int,
        numeric: PiecewiseLinear | None = None,
    ) -> None:
        super().__init__()
        for token, group in enumerate(columns):
            if not group or not all(0 <= column < in_dim for column in group):
                raise ValueError(f"token {token} must read columns in 0..{in_dim - 1}, got {list(group)}")
        width = max(len(group) for group in columns)
        padded = [list(group) + [in_dim] * (width - len(group)) for group in columns]
        self.num_tokens, self.in_dim, self.width = len(columns), in_dim, width
        self.numeric = numeric
        self.register_buffer("columns", torch.tensor(padded).reshape(-1), persistent=False)
        self.weight = nn.Parameter(torch.stack([_padded_xavier(len(group), width, token_dim) for group in columns]))
        self.bias = nn.Parameter(torch.zeros(len(columns), 1, token_dim))

    def forward(self, flat: Tensor) -> Tensor:
        """Tokens ``[N, B, T]`` of flat features ``[B, F]``."""
        flat = flat if self.numeric is None else self.numeric(flat)
        block = F.pad(flat, (0, 1)).index_select(1, self.columns)
        block = block.reshape(-1, self.num_tokens, self.width).transpose(0, 1)
        return torch.baddbmm(self.bias, block, self.weight)


def _padded_xavier(fan_in: int, width: int, fan_out: int) -> Tensor:
    bound = (6.0 / (fan_in + fan_out)) ** 0.5
    weight = torch.empty(width, fan_out).uniform_(-bound, bound)
    weight[fan_in:] = 0.0
    return weight


def semantic_groups(slices: Sequence[FlatSlice], labels: Mapping[str, str | None], num_tokens: int) -> Groups:
    """Groups of one side: features that share a label, then the unlabelled ones in groups of near equal width.

    Args:
        slices: Where each feature of the side stands in its flat input.
        labels: The group's name for each labelled feature.
        num_tokens: Tokens wanted for the side; labels come first, what remains is shared by the unlabelled features.

    Example:
        >>> slices = [FlatSlice(name=name, start=8 * at, width=8) for at, name in enumerate(["age", "city", "genre"])]
        >>> semantic_groups(slices, {"age": "profile", "city": "profile"}, num_tokens=2)
        {'profile': ('age', 'city'), 'group_0': ('genre',)}
    """
    labelled: dict[str, list[str]] = {}
    for piece in slices:
        if label := labels.get(piece.name):
            labelled.setdefault(label, []).append(piece.name)
    groups = {label: tuple(names) for label, names in sorted(labelled.items())}
    rest = [piece for piece in slices if not labels.get(piece.name)]
    for index, group in enumerate(balanced_groups(rest, max(1, num_tokens - len(groups)))):
        groups[f"group_{index}"] = group
    return groups


def balanced_groups(slices: Sequence[FlatSlice], num_groups: int) -> list[tuple[str, ...]]:
    """Divide features into at most ``num_groups`` groups of near equal total width.

    The widest goes first, each to the lightest group. Deterministic: equal widths go by name, equal groups by position.

    Example:
        >>> a, b, c = (FlatSlice(name=name, start=0, width=width) for name, width in [("a", 8), ("b", 4), ("c", 4)])
        >>> balanced_groups([a, b, c], 2)
        [('a',), ('b', 'c')]
    """
    count = min(num_groups, len(slices))
    members: list[list[str]] = [[] for _ in range(count)]
    widths = [0] * count
    for piece in sorted(slices, key=lambda piece: (-piece.width, piece.name)):
        lightest = widths.index(min(widths))
        members[lightest].append(piece.name)
        widths[lightest] += piece.width
    return [tuple(names) for names in members]


def equal_columns(width: int, num_tokens: int) -> list[list[int]]:
    """Columns of pieces of one width, the last one narrower where they do not come out even; at most ``num_tokens``.

    Example:
        >>> equal_columns(5, 2)
        [[0, 1, 2], [3, 4]]
    """
    size = -(-width // num_tokens)
    return [list(range(start, min(start + size, width))) for start in range(0, width, size)]


def configured_groups(slices: Sequence[FlatSlice], groups: Mapping[str, Sequence[str]], *, side: str) -> Groups:
    """Groups as a configuration gives them, checked: each feature of the side stands in exactly one group.

    Raises:
        ConfigError: a feature is missing, unknown, repeated, or a group is empty.
    """
    known = {piece.name for piece in slices}
    named = [name for names in groups.values() for name in names]
    for group, names in groups.items():
        if not names:
            raise ConfigError(f"groups.{side}.{group}: expected at least one feature, got none")
    for problem, names in (
        ("unknown", sorted(set(named) - known)),
        ("in no group", sorted(known - set(named))),
        ("in two groups", sorted({name for name in named if named.count(name) > 1})),
    ):
        if names:
            raise ConfigError(f"groups.{side}: each {side} feature stands in exactly one group, {problem}: {names}")
    return {group: tuple(names) for group, names in groups.items()}


def group_columns(slices: Sequence[FlatSlice], groups: Groups) -> list[list[int]]:
    """Columns of the flat input that each group reads, in the order of its features."""
    at = {piece.name: range(piece.start, piece.start + piece.width) for piece in slices}
    return [[column for name in names for column in at[name]] for names in groups.values()]
