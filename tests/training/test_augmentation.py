"""Pictures cropped and mirrored: by hand on a tiny one, and as part of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from offbeat.core import draws
from offbeat.core.draws import epoch_order
from offbeat.core.errors import ConfigError, DataError
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.vector import flatten
from offbeat.experiment.spec import experiment_files
from offbeat.training import trainer as training
from offbeat.training.augmentation import MAX_SHIFT, CropFlip
from offbeat.training.client_data import ClientData
from offbeat.training.trainer import Trainer, Training

# two channels of 2 × 3 pixels; black, the smallest value, is 1 in the first and -5 in the second
PICTURE = torch.tensor([[[1.0, 2, 3], [4, 5, 6]], [[-5.0, 0, 1], [2, 3, 4]]])


def data_of(*pictures: torch.Tensor) -> ClientData:
    return ClientData.separate([(torch.stack(pictures), torch.zeros(len(pictures), dtype=torch.int64))])


@pytest.mark.parametrize(
    ("move", "first"),
    [
        ((0, 0, 0), [[1.0, 2, 3], [4, 5, 6]]),
        ((0, 0, 1), [[3.0, 2, 1], [6, 5, 4]]),  # mirrored
        ((1, 0, 0), [[4.0, 5, 6], [1, 1, 1]]),  # the crop starts one row lower: black comes in below
        ((-1, 0, 0), [[1.0, 1, 1], [1, 2, 3]]),
        ((0, 2, 0), [[3.0, 1, 1], [6, 1, 1]]),  # two columns further right
        ((0, 1, 1), [[1.0, 3, 2], [1, 6, 5]]),  # cropped to 2 3 black and 5 6 black, then mirrored
        ((4, -4, 1), [[1.0, 1, 1], [1, 1, 1]]),  # nothing of it is left
    ],
)
def test_a_tiny_picture_by_hand(move, first):
    shown = CropFlip(data_of(PICTURE))(PICTURE[None], torch.tensor([move]))
    assert shown[0, 0].tolist() == first
    # the other channel moves along, and its black is its own
    black = {1.0: -5.0, 2.0: 0.0, 3.0: 1.0, 4.0: 2.0, 5.0: 3.0, 6.0: 4.0}
    assert shown[0, 1].tolist() == [[black[v] for v in row] for row in first]


def test_every_picture_has_a_move_of_its_own_and_bytes_stay_bytes():
    pictures = torch.arange(2 * 2 * 3, dtype=torch.uint8).reshape(2, 1, 2, 3)
    shown = CropFlip(data_of(*pictures))(pictures, torch.tensor([[0, 0, 1], [0, 0, 0]]))
    assert shown.dtype == torch.uint8
    assert shown[:, 0, 0].tolist() == [[2, 1, 0], [6, 7, 8]]


def test_shifts_are_of_up_to_four_pixels_and_half_are_mirrored():
    moves = CropFlip(data_of(PICTURE)).draw(torch.tensor(5), torch.tensor(0), torch.arange(20_000))
    for shift in (0, 1):
        assert moves[:, shift].unique().tolist() == list(range(-MAX_SHIFT, MAX_SHIFT + 1))
    # 20,000 fair coins: a deviation of sqrt(20,000) / 2 = 71, six of them are 0.0212
    assert float(moves[:, 2].double().mean()) == pytest.approx(0.5, abs=0.0212)


# ---------------------------------------------------------------- jobs

PICTURES = torch.randn(12, 1, 6, 6, generator=torch.Generator().manual_seed(1))
MODEL = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
CROPPED = Training(batch=4, epochs=2, augment="crop-flip")


def trainer(settings: Training) -> Trainer:
    return Trainer(MODEL, ClientData.separate([(PICTURES, torch.arange(12) % 2)] * 2), settings)


def job(index: int = 0, client: int = 0) -> Job:
    base = flatten(MODEL)
    return Job(
        ticket=0,
        client=client,
        index=index,
        base=base,
        base_version=0,
        work=LocalWork(),
        num_examples=12,
        memory={},
        seed=3,
    )


def test_the_same_job_gives_the_same_bits_wherever_and_in_whatever_pieces(monkeypatch):
    expected = trainer(CROPPED)(job()).local
    other = trainer(CROPPED)
    other(job(index=5))  # what was computed before leaves no trace
    assert torch.equal(other(job()).local, expected)
    monkeypatch.setattr(training, "_MAX_GATHERED_VALUES", 1)  # one batch gathered at a time
    assert torch.equal(trainer(CROPPED)(job()).local, expected)


def test_another_job_and_another_client_see_other_pictures():
    locals_ = [trainer(CROPPED)(j).local for j in (job(), job(index=1), job(client=1))]
    assert not torch.equal(locals_[0], locals_[1])
    assert not torch.equal(locals_[0], locals_[2])


def test_a_job_by_hand():
    """One step of all twelve pictures: the gradient is that of the pictures as drawn from the job's key."""
    settings = replace(CROPPED, batch=12, epochs=1)
    made = trainer(settings)
    order = torch.from_numpy(epoch_order(draws.bits(3, "batches", 0, 0), 0, 12))
    key = torch.tensor(draws.bits(3, "augment", 0, 0) >> 1)
    moves = CropFlip(made.data).draw(key, torch.tensor(0), torch.arange(12))
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
    module.load_state_dict(MODEL.state_dict())
    shown = CropFlip(made.data)(PICTURES[order], moves)
    torch.nn.functional.cross_entropy(module(shown), (torch.arange(12) % 2)[order]).backward()
    expected = flatten(module) - settings.lr * torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(made(job()).local, expected)


def test_without_it_nothing_is_drawn_or_shown_differently(monkeypatch):
    plain = trainer(replace(CROPPED, augment=None))
    monkeypatch.setattr(CropFlip, "draw", None)
    plain(job())
    assert plain._augment is None


def test_what_is_no_picture_is_refused():
    flat = ClientData.separate([(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))])
    with pytest.raises(
        DataError, match=r"'crop-flip' needs images \(channels, height, width\), but the inputs have shape \(5,\)"
    ):
        Trainer(torch.nn.Linear(5, 2), flat, CROPPED)
    with pytest.raises(ConfigError, match="unknown augmentation 'crop_flip': did you mean 'crop-flip'"):
        Training(augment="crop_flip")


def test_it_is_a_setting_of_an_experiment_file():
    experiment = experiment_files.parse_experiment("training: {augment: crop-flip}")
    assert experiment.training.augment == "crop-flip"
    assert experiment_files.parse_experiment(experiment_files.to_yaml(experiment)) == experiment
