"""How the rows of ads belong to requests, so that what is known of a request is repeated as late as possible.

Shapes: R requests, B rows, C places of a request (its rows, or more where requests differ in rows), Q query tokens.
"""

import torch
from torch import Tensor


class EvenRows:
    """Every request has C rows, one after another: row b belongs to request ``b // C``.

    Nothing is gathered, so an exported graph that takes R requests with C ads each needs no index.

    Args:
        num_requests: R.
        width: C.

    Example:
        >>> rows = EvenRows(num_requests=2, width=2)
        >>> rows.repeat(torch.tensor([[1.0], [2.0]])).flatten().tolist()
        [1.0, 1.0, 2.0, 2.0]
        >>> rows.group(torch.ones(3, 4, 8)).shape
        torch.Size([3, 2, 2, 8])
    """

    def __init__(self, num_requests: int, width: int) -> None:
        self.num_requests, self.width = num_requests, width

    def repeat(self, x: Tensor) -> Tensor:
        """``[R, ...]`` of requests to ``[B, ...]``, each request's row for each of its ads."""
        return x.unsqueeze(1).expand(self.num_requests, self.width, *x.shape[1:]).flatten(0, 1)

    def add(self, x: Tensor, part: Tensor) -> Tensor:
        """``x [N, B, D]`` plus each row's request of ``part [R, N, D]``."""
        return (self.group(x) + part.transpose(0, 1).unsqueeze(2)).flatten(1, 2)

    def meet(self, x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        """Rows ``[B, T]`` and what all of them read at length ``[R, ...]``, as ``[G, M, T]`` and ``[G, ...]``.

        M rows share one group's part, and ``[G, M, ...]`` flattens to ``[B, ...]``.
        """
        return x.unflatten(0, (self.num_requests, self.width)), *parts

    def group(self, x: Tensor) -> Tensor:
        """Tokens ``[Q, B, T]`` to ``[Q, R, C, T]``, the rows of a request side by side."""
        return x.unflatten(1, (self.num_requests, self.width))

    def ungroup(self, x: Tensor) -> Tensor:
        """Undo :meth:`group`: ``[Q, R, C, T]`` to ``[Q, B, T]``."""
        return x.flatten(1, 2)


class IndexedRows:
    """Requests have any numbers of rows, in any order; grouping pads them to the largest number.

    Padding a few query tokens costs far less than repeating a request's keys and values for each of its ads.

    Args:
        request_index: int64 ``[B]``, each row's request.
        num_requests: R.

    Example:
        >>> rows = IndexedRows(torch.tensor([1, 0, 1]), num_requests=2)
        >>> x = torch.tensor([[[1.0], [2.0], [3.0]]])
        >>> rows.group(x).squeeze(-1).tolist()
        [[[2.0, 0.0], [1.0, 3.0]]]
        >>> torch.equal(rows.ungroup(rows.group(x)), x)
        True
    """

    def __init__(self, request_index: Tensor, num_requests: int) -> None:
        self.request_index, self.num_requests = request_index, num_requests
        counts = torch.bincount(request_index, minlength=num_requests)
        order = torch.argsort(request_index, stable=True)
        within = torch.empty_like(order)
        within[order] = (
            torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[request_index[order]]
        )
        self.width = max(1, int(counts.max()))
        self.places = request_index * self.width + within

    def repeat(self, x: Tensor) -> Tensor:
        """As :meth:`EvenRows.repeat`."""
        return x.index_select(0, self.request_index)

    def add(self, x: Tensor, part: Tensor) -> Tensor:
        """As :meth:`EvenRows.add`."""
        return x + self.repeat(part).transpose(0, 1)

    def meet(self, x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        """As :meth:`EvenRows.meet`; each row is a group, since padding would cost as much as the part is long."""
        return x.unsqueeze(1), *(self.repeat(part) for part in parts)

    def group(self, x: Tensor) -> Tensor:
        """As :meth:`EvenRows.group`, zeros where a request has fewer rows than the largest."""
        num_queries, _, dim = x.shape
        padded = x.new_zeros(num_queries, self.num_requests * self.width, dim).index_copy(1, self.places, x)
        return padded.unflatten(1, (self.num_requests, self.width))

    def ungroup(self, x: Tensor) -> Tensor:
        """As :meth:`EvenRows.ungroup`."""
        return x.flatten(1, 2).index_select(1, self.places)


Rows = EvenRows | IndexedRows
