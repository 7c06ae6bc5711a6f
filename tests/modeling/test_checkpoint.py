"""Checkpoints on disk: whole, of this model, and free of anything that runs code."""

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from contracts.errors import ArtifactError, MismatchError
from contracts.schema import FeatureSchema
from modeling import checkpoint
from modeling.tables import FeatureTables


class State(msgspec.Struct):
    """What a run might remember."""

    step: int


def model_of(schema: FeatureSchema, *, seed: int, width: int = 4) -> nn.ModuleDict:
    torch.manual_seed(seed)
    tables = FeatureTables(schema, ("query", "ad"), pool_sequences=True, learning_rate=0.1, seed=seed)
    return nn.ModuleDict({"tables": tables, "head": nn.Linear(3, width)})


def stepped(model: nn.ModuleDict) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model["head"].parameters(), lr=0.1)
    model["head"](torch.ones(2, 3)).sum().backward()
    optimizer.step()
    model["tables"].optimizer_state()["ad"].fill_(3.0)
    return optimizer


def test_training_goes_on_from_what_was_saved(small_schema: FeatureSchema, tmp_path: Path) -> None:
    source = model_of(small_schema, seed=1)
    optimizer = stepped(source)
    saved = checkpoint.save(tmp_path, 12, checkpoint.training_tensors(source, optimizer), State(step=12))
    drawn = torch.rand(3)

    target = model_of(small_schema, seed=2)
    fresh = torch.optim.AdamW(target["head"].parameters(), lr=0.1)
    found = checkpoint.latest(tmp_path)
    assert found == saved
    assert found.state(State) == State(step=12)
    checkpoint.restore_training(found, target, fresh)
    assert torch.equal(torch.rand(3), drawn)
    for name, tensor in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], tensor)
    assert (target["tables"].optimizer_state()["ad"] == 3.0).all()
    for parameter, other in zip(source["head"].parameters(), target["head"].parameters(), strict=True):
        for key, value in optimizer.state[parameter].items():
            assert torch.equal(fresh.state[other][key], value)


def test_only_finished_checkpoints_count_and_others_can_go(tmp_path: Path) -> None:
    for step in (3, 20, 100):
        checkpoint.save(tmp_path, step, {"model.a": torch.ones(1)}, State(step=step))
    (tmp_path / "step-00000500").mkdir()
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 100
    checkpoint.prune(tmp_path, keep=[20])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000500"]
    with pytest.raises(ArtifactError, match="no finished checkpoint of step 100 here"):
        checkpoint.at(tmp_path, 100)
    assert checkpoint.latest(tmp_path / "absent") is None


def test_a_checkpoint_of_another_model_is_refused(small_schema: FeatureSchema, tmp_path: Path) -> None:
    source = model_of(small_schema, seed=1)
    saved = checkpoint.save(tmp_path, 1, checkpoint.training_tensors(source, stepped(source)), State(step=1))
    with pytest.raises(MismatchError, match=r"another model, these tensors differ: head\.bias, head\.weight"):
        checkpoint.restore_model(saved, model_of(small_schema, seed=1, width=5))


def test_altered_files_are_refused(tmp_path: Path) -> None:
    saved = checkpoint.save(tmp_path, 1, {"model.a": torch.ones(100)}, State(step=1))
    tensors = saved.path / checkpoint.TENSORS
    tensors.write_bytes(tensors.read_bytes()[:-10])
    with pytest.raises(ArtifactError, match=r"tensors\.safetensors: not a readable checkpoint"):
        saved.tensors()
    (saved.path / checkpoint.STATE).write_text("{")
    with pytest.raises(ArtifactError, match=r"state\.json: not the state of a checkpoint"):
        saved.state(State)
