"""Flat vectors and their layouts."""

import pytest
import torch
from torch import nn

from core import messages
from offbeat.core.errors import ConfigError
from offbeat.core.vector import Binding, Layout, Slice, flatten


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(2, 2, bias=False)
        self.leave = nn.Linear(2, 2, bias=False)
        self.leave.weight = self.enter.weight


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("kept", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(5), persistent=False)
        self.register_buffer("absent", None)
        self.register_buffer("flag", torch.tensor(True))


def test_a_batchnorm_model_has_params_then_buffers_then_counters() -> None:
    layout = Layout.of(normed())
    # Linear 3x2 + 3, BatchNorm 3 + 3 = 15 params; running mean and var 3 + 3 = 6 buffers; one counter
    assert [(s.name, s.kind, s.stop - s.start) for s in layout.slices] == [
        ("0.weight", "param", 6), ("0.bias", "param", 3), ("1.weight", "param", 3), ("1.bias", "param", 3),
        ("1.running_mean", "buffer", 3), ("1.running_var", "buffer", 3), ("1.num_batches_tracked", "counter", 1),
    ]  # fmt: skip
    assert (layout.params, layout.buffers, layout.counters) == (((0, 15),), ((15, 21),), ((21, 22),))
    assert (layout.size, layout.num_params, layout.params_only) == (22, 15, False)


def test_tied_weights_travel_once() -> None:
    layout = Layout.of(Tied())
    assert [s.name for s in layout.slices] == ["enter.weight"]
    assert layout.params_only


def test_frozen_parameters_stay_in_the_module() -> None:
    module = normed()
    module[0].weight.requires_grad_(False)
    layout = Layout.of(module)
    assert [s.name for s in layout.of_kind("param")] == ["0.bias", "1.weight", "1.bias"]
    assert flatten(module).numel() == 22 - 6


def test_only_persistent_buffers_travel_and_integers_are_counters() -> None:
    layout = Layout.of(Buffered())
    assert [(s.name, s.kind) for s in layout.slices] == [("weight", "param"), ("kept", "buffer"), ("flag", "counter")]


def test_a_buffer_that_two_modules_share_travels_once() -> None:
    module = nn.Sequential(Buffered(), Buffered())
    module[1].kept = module[0].kept
    assert [s.name for s in Layout.of(module).of_kind("buffer")] == ["0.kept"]


@pytest.mark.parametrize(
    ("module", "message"), messages.INVALID_MODULES, ids=[text for _, text in messages.INVALID_MODULES]
)
def test_a_module_that_has_no_flat_vector_is_refused_by_name(module: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Layout.of(module)


@pytest.mark.parametrize(("slices", "message"), messages.INVALID_LAYOUTS)
def test_a_layout_with_gaps_overlaps_or_wrong_shapes_is_refused(slices: list[tuple], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Layout(tuple(Slice(*entry) for entry in slices))


def test_statistics_between_params_are_cut_out_and_put_back() -> None:
    layout = Layout(
        (Slice("a", (2,), 0, 2), Slice("mean", (1,), 2, 3, "buffer"), Slice("b", (1,), 3, 4), Slice("c", (1,), 4, 5))
    )
    vector = torch.tensor([1.0, 2.0, 9.0, 3.0, 4.0])
    assert layout.params == ((0, 2), (3, 5))  # neighbours are one range
    assert layout.trainable(vector).tolist() == [1, 2, 3, 4]
    assert layout.with_trainable(vector, torch.tensor([5.0, 6.0, 7.0, 8.0])).tolist() == [5, 6, 9, 7, 8]
    assert vector.tolist() == [1, 2, 9, 3, 4]


def test_trainable_entries_are_a_view_where_they_are_contiguous() -> None:
    layout = Layout.of(normed())
    vector = torch.zeros(22)
    layout.trainable(vector).add_(1.0)
    assert vector.sum() == 15


def test_trainable_entries_keep_leading_client_dimensions() -> None:
    layout = Layout((Slice("a", (1,), 0, 1), Slice("mean", (1,), 1, 2, "buffer"), Slice("b", (1,), 2, 3)))
    many = torch.arange(6.0).reshape(2, 3)
    assert layout.trainable(many).tolist() == [[0, 2], [3, 5]]
    assert layout.with_trainable(many, torch.zeros(2, 2)).tolist() == [[0, 1, 0], [0, 4, 0]]


def test_layouts_of_equal_slices_are_equal() -> None:
    assert Layout.of(normed()) == Layout.of(normed())
    assert Layout.of(normed()) != Layout.of(Tied())


def test_a_bound_module_moves_with_its_vector() -> None:
    module = normed()
    binding = Binding(module)
    before = module[0].weight.detach().clone()
    binding.w.add_(1.0)
    assert torch.equal(module[0].weight, before + 1.0)
    assert module[0].weight.data_ptr() == binding.vector.data_ptr()  # no copy


def test_tied_weights_stay_tied_when_bound() -> None:
    module = Tied()
    binding = Binding(module)
    binding.load(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert module.leave.weight.tolist() == module.enter.weight.tolist() == [[1, 2], [3, 4]]


def test_put_then_take_gives_the_vector_back() -> None:
    binding = Binding(normed())
    vector = torch.arange(22.0)
    binding.load(vector)
    assert torch.equal(binding.copy(), vector)
    assert binding.module[1].num_batches_tracked.item() == 21
    assert binding.module[1].num_batches_tracked.dtype == torch.int64


def test_take_sees_the_statistics_the_module_gathered() -> None:
    module = normed()
    binding = Binding(module)
    module.train()
    module(torch.randn(8, 2))
    taken = binding.copy()
    assert torch.equal(taken[15:18], module[1].running_mean)
    assert taken[21] == 1  # one batch tracked


def test_a_bound_module_loads_vectors_after_its_parameters_are_frozen() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    binding = Binding(module)
    module.requires_grad_(False)
    vector = torch.arange(binding.layout.size, dtype=torch.float32)
    binding.load(vector)
    assert torch.equal(binding.copy(), vector)


def test_what_was_taken_does_not_move_any_more() -> None:
    binding = Binding(normed())
    taken = binding.copy()
    before = taken.clone()
    binding.w.zero_()
    assert torch.equal(taken, before)


def test_a_bound_module_still_gets_gradients() -> None:
    module = nn.Linear(1, 1, bias=False)
    binding = Binding(module)
    binding.load(torch.tensor([3.0]))
    module(torch.tensor([[2.0]])).sum().backward()  # d(3 * 2)/dw = 2
    assert module.weight.grad is not None
    assert module.weight.grad.item() == 2


def test_a_vector_of_the_wrong_length_does_not_fit() -> None:
    with pytest.raises(ConfigError, match=messages.WRONG_LENGTH):
        Binding(normed()).load(torch.zeros(3))
