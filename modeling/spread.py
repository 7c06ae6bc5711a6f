"""A model over the processes of a run: its tables divided for training, and whole again at the end."""

import torch
from torch import nn

from modeling.distributed import Ranks
from modeling.tables import feature_tables


def spread(model: nn.Module, ranks: Ranks) -> None:
    """Divide the tables of a model over the processes, each of which brings the same model and takes it to its device.

    Raises:
        AdsieveError: The processes bring different weights.
    """
    if ranks.alone:
        return
    ranks.check_equal(model.state_dict(), "the initial weights")
    if not ranks.is_main:
        torch.manual_seed(torch.initial_seed() + ranks.rank)  # dropout differs between processes
    for tables in feature_tables(model):
        tables.shard(ranks)
    model.to(ranks.device)


def collect(model: nn.Module) -> None:
    """Make room for the whole model in each process again, on the CPU; its weights are then to be loaded."""
    for tables in feature_tables(model):
        tables.unshard()
    model.to("cpu")
