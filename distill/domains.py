"""Which domain each request and each ad belongs to, where one student learns several scenarios together.

Shapes: R requests, A ad rows, N pairs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from modeling.batches import Batch
from modeling.examples import Examples
from towers.two_tower import Domains


@dataclass(frozen=True)
class RowDomains:
    """The domain of every row of some examples, as positions in ``TwoTowerConfig.domains``.

    Args:
        requests: int64 [R].
        ads: int64 [A].
    """

    requests: Tensor
    ads: Tensor

    def of(self, batch: Batch) -> Domains:
        """Those of a batch's requests and ads, on its device."""
        device = batch.query.ids.device
        return self.requests[batch.requests].to(device), self.ads[batch.ads].to(device)


def row_domains(examples: Examples, domains: tuple[str, ...]) -> RowDomains:
    """A request belongs to its scenario, an ad to its own; an ad of no domain to that of a request that it was in.

    Args:
        examples: Of requests of ``domains`` alone.
        domains: Scenario names in the order of their numbers.
    """
    numbers = {name: number for number, name in enumerate(domains)}
    of_codes = np.array([numbers.get(name, 0) for name in examples.summary.scenario_names], np.int64)
    requests = of_codes[np.asarray(examples.scenario)]
    ads = np.full(len(examples.ad), -1, np.int64)
    ads[np.asarray(examples.ad_row)[::-1]] = requests[np.asarray(examples.request_row)[::-1]]  # its first request's
    own = examples.columns("ads", ["scenario"])["scenario"].to_pylist()
    ads = np.array([numbers.get(name, fallback) for name, fallback in zip(own, ads.tolist(), strict=True)], np.int64)
    return RowDomains(torch.from_numpy(requests), torch.from_numpy(ads.clip(min=0)))
