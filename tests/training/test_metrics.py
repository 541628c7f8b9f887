"""Every metric by hand, and against scikit-learn where that has it."""

from __future__ import annotations

from math import isnan, log

import pytest
import torch
from sklearn import metrics as sklearn
from torch import Tensor, nn

from offbeat.core import draws
from offbeat.core.errors import DataError
from offbeat.training.evaluation import Evaluator
from offbeat.training.tasks import TASKS, Classification, MultiLabel, Regression, Segmentation, Survival, Task

F = torch.float64


def measured(task: Task, outputs: Tensor, y: Tensor, batch: int = 1000) -> dict[str, float]:
    rows = torch.cat([task.rows(a, b) for a, b in zip(outputs.split(batch), y.split(batch), strict=True)])
    return dict(zip((m.name for m in task.metrics), task.scores(rows), strict=True))


def logits(said: list[int], classes: int) -> Tensor:
    return 10 * nn.functional.one_hot(torch.tensor(said), classes).double()


# ---------------------------------------------------------------- one label of several

TRUE = [0, 0, 0, 0, 1, 1, 2, 2]
SAID = [0, 0, 0, 1, 1, 2, 3, 3]  # class 3 does not occur, class 2 is never right, class 4 is never met


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_classification_by_hand(batch):
    values = measured(Classification(), logits(SAID, 5), torch.tensor(TRUE), batch)
    # hits 3 + 1 of 8. Recall of classes 0, 1, 2: 3/4, 1/2, 0: mean 5/12.
    # F1 = 2 right / (said + true): 6/7, 2/4, 0/3, 0/2: mean over the four classes met (6/7 + 1/2) / 4 = 19/56
    # precision 3/3, 1/2, 0/1, 0/2: mean 3/8
    assert values["acc"] == 0.5
    assert values["balanced_acc"] == pytest.approx(5 / 12)
    assert values["f1"] == pytest.approx(19 / 56)
    assert values["precision"] == pytest.approx(3 / 8)


def drawn(shape: tuple[int, ...], *key: int) -> Tensor:
    return torch.randn(shape, generator=draws.generator(0, "scores", *key), dtype=F)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_classification_is_what_scikit_learn_says():
    for trial in range(5):
        outputs = drawn((60, 4), trial)
        y = (drawn((60,), trial, 1).abs() * 1.3).long().clamp(max=3)
        values, said = measured(Classification(), outputs, y, 7), outputs.argmax(1)
        assert values["acc"] == pytest.approx(sklearn.accuracy_score(y, said))
        assert values["balanced_acc"] == pytest.approx(sklearn.balanced_accuracy_score(y, said))
        assert values["f1"] == pytest.approx(sklearn.f1_score(y, said, average="macro"))
        assert values["precision"] == pytest.approx(sklearn.precision_score(y, said, average="macro", zero_division=0))


# ---------------------------------------------------------------- several labels at once


def test_several_labels_by_hand():
    # two examples, three labels: said yes, yes, no / no, yes, no; true yes, no, yes / no, yes, no
    outputs = torch.tensor([[1.0, 2.0, -1.0], [-3.0, 0.5, -1.0]], dtype=F)
    y = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], dtype=F)
    # of all six decisions: 2 right yes, 3 said yes, 3 truly yes; of 3 truly no 2 are right
    values = measured(MultiLabel(), outputs, y, batch=1)
    # log(1 + e^-z), e^z where it should be no
    losses = [log(1 + 2.718281828459045**z) for z in (-1, 2, 1, -3, -0.5, -1)]
    assert values == pytest.approx(
        {"loss": sum(losses) / 6, "f1": 2 / 3, "precision": 2 / 3, "recall": 2 / 3, "balanced_acc": 2 / 3}
    )


def test_several_labels_are_what_scikit_learn_says():
    for trial in range(5):
        outputs, y = drawn((40, 6), trial, 2) - 0.3, (drawn((40, 6), trial, 3) > 0.5).double()
        values, said = measured(MultiLabel(), outputs, y, 11), outputs > 0
        assert values["f1"] == pytest.approx(sklearn.f1_score(y, said, average="micro"))
        assert values["precision"] == pytest.approx(sklearn.precision_score(y, said, average="micro"))
        assert values["recall"] == pytest.approx(sklearn.recall_score(y, said, average="micro"))
        assert values["balanced_acc"] == pytest.approx(sklearn.balanced_accuracy_score(y.flatten(), said.flatten()))


def test_labels_nobody_has_and_nobody_says_score_zero_not_an_error():
    # everything is rightly no: there is no yes to find (F1 0 as in scikit-learn), and balanced accuracy has the no's
    # alone
    values = measured(MultiLabel(), -torch.ones(3, 2, dtype=F), torch.zeros(3, 2, dtype=F))
    assert (values["f1"], values["precision"], values["recall"], values["balanced_acc"]) == (0, 0, 0, 1)


def test_outputs_of_another_shape_are_one_clear_error():
    with pytest.raises(DataError, match=r"outputs of shape \(2, 2\) do not fit targets of shape \(2, 3\)"):
        MultiLabel().loss(torch.zeros(2, 2), torch.zeros(2, 3))


# ---------------------------------------------------------------- real targets


def test_regression_by_hand():
    # errors 1, 0, 4: mae 5/3, squared 1, 0, 16. SMAPE: 1 / 1.5, 0 (both are 0), 4 / 4: mean (2/3 + 0 + 1) / 3 = 5/9
    values = measured(
        Regression(), torch.tensor([2.0, 0.0, -6.0], dtype=F), torch.tensor([1.0, 0.0, -2.0], dtype=F), batch=2
    )
    assert values == pytest.approx({"loss": 17 / 3, "mae": 5 / 3, "smape": 5 / 9})


# ---------------------------------------------------------------- a class for each place


def test_dice_by_hand():
    # one image of four places: true 1 1 0 0, said 1 0 0 0. Class 1: 2·1 / (1 + 2) = 2/3. Class 0: 2·2 / (3 + 2) = 4/5
    # another, empty and said to be: class 1 is 1 (both are empty), class 0 is 1
    y = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]])
    outputs = torch.stack([logits(said, 2).T for said in ([1, 0, 0, 0], [0, 0, 0, 0])])
    for batch in (1, 2):
        assert measured(Segmentation(), outputs, y, batch)["dice"] == pytest.approx(((2 / 3 + 4 / 5) / 2 + 1) / 2)


def test_the_loss_of_a_segmentation_is_what_soft_dice_lacks():
    # even logits: probability 1/2 everywhere. True 1 0: both classes 2·(1/2) / (1 + 1) = 1/2
    assert float(Segmentation().loss(torch.zeros(1, 2, 2), torch.tensor([[1, 0]]))) == pytest.approx(0.5)


# ---------------------------------------------------------------- survival


def test_cox_loss_by_hand():
    # log risks 0, ln 2, ln 3; times 1, 2, 3; the second was only seen until 2. At time 1 all are at risk, 1 + 2 + 3 =
    # 6; at time 3 the third alone. -(0 - ln 6) - (ln 3 - ln 3), over 3
    y = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]], dtype=F)
    outputs = torch.tensor([[0.0], [log(2)], [log(3)]], dtype=F)
    assert float(Survival().loss(outputs, y)) == pytest.approx(log(6) / 3)
    order = torch.tensor([2, 0, 1])
    assert float(Survival().loss(outputs[order], y[order])) == pytest.approx(log(6) / 3)


def test_events_at_one_time_have_all_of_them_at_risk():
    # both at time 1, log risks 0 and 0, both had it: each is one of two: 2 ln 2 over 2
    y = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=F)
    assert float(Survival().loss(torch.zeros(2, 1, dtype=F), y)) == pytest.approx(log(2))


def test_a_batch_without_an_event_has_no_gradient():
    outputs = torch.ones(2, 1, requires_grad=True)
    loss = Survival().loss(outputs, torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    loss.backward()
    assert loss.item() == 0
    assert outputs.grad.tolist() == [[0.0], [0.0]]


def test_the_gradient_of_the_cox_loss_by_hand():
    # the first of two has it: -(h1 - log(e^h1 + e^h2)) / 2, at 0: -(1 - 1/2) / 2 and (1/2) / 2
    outputs = torch.zeros(2, 1, dtype=F, requires_grad=True)
    Survival().loss(outputs, torch.tensor([[1.0, 1.0], [2.0, 0.0]], dtype=F)).backward()
    assert outputs.grad.flatten().tolist() == pytest.approx([-0.25, 0.25])


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_concordance_by_hand(batch):
    # (time, event, risk): a (1, yes, 5) b (2, no, 4) c (2, yes, 4) d (3, no, 6) e (3, yes, 1)
    # known pairs: a before b c d e; c before b (seen at that very time without it), d, e; e before d
    # agree: a>b, a>c, a>e and not a<d: 3 of 4; c=b half, c<d no, c>e yes: 1.5 of 3; e<d no: 0 of 1. 4.5 of 8
    y = torch.tensor([[1, 1], [2, 0], [2, 1], [3, 0], [3, 1]], dtype=F)
    risks = torch.tensor([[5.0], [4.0], [4.0], [6.0], [1.0]], dtype=F)
    assert measured(Survival(), risks, y, batch)["c_index"] == pytest.approx(4.5 / 8)


def test_without_a_known_pair_there_is_no_concordance():
    assert isnan(measured(Survival(), torch.zeros(2, 1), torch.tensor([[1.0, 0.0], [2.0, 0.0]]))["c_index"])


# ---------------------------------------------------------------- tasks and evaluators


@pytest.mark.parametrize("spoilt", [[0], [0, 1, 2, 3]], ids=["one", "all"])
@pytest.mark.parametrize("batch", [1, 4])
def test_outputs_that_are_no_numbers_are_never_a_good_score(spoilt, batch):
    real, volume, risk = torch.ones(4, 3), torch.zeros(4, 2, 3, 3), torch.tensor([4.0, 3.0, 2.0, 1.0])
    for outputs in (real, volume, risk):
        outputs[spoilt] = float("nan")
    lived = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [4.0, 1.0]])
    assert all(map(isnan, measured(Regression(), real, torch.ones(4, 3), batch).values()))
    assert all(map(isnan, measured(Segmentation(), volume, torch.zeros(4, 3, 3, dtype=torch.int64), batch).values()))
    assert all(map(isnan, measured(Survival(), risk, lived, batch).values()))


def test_what_is_empty_on_both_sides_is_right():
    # SMAPE of 0 against 0 is 0; DICE of a class that nobody sees is 1, and neither spoils a gradient
    assert measured(Regression(), torch.zeros(2), torch.zeros(2))["smape"] == 0
    # softmax is 1 and 0 to the bit
    outputs = torch.tensor([[[50.0, 50.0]], [[-1e4, -1e4]]]).movedim(1, 0).requires_grad_()
    loss = Segmentation().loss(outputs, torch.zeros(1, 2, dtype=torch.int64))
    loss.backward()
    assert float(loss.detach()) == 0
    assert outputs.grad is not None
    assert bool(outputs.grad.isfinite().all())


def test_every_kind_of_data_set_has_its_task():
    from typing import get_args

    from offbeat.scenario.data.dataset import TaskName

    assert set(TASKS) == set(get_args(TaskName))
    assert all(isinstance(task(), Task) for task in TASKS.values())
    assert {name: task.metrics[1].name for name, task in TASKS.items()} == {
        "classification": "acc", "regression": "mae", "multilabel": "f1", "segmentation": "dice", "survival": "c_index",
    }  # fmt: skip


def test_accuracy_for_a_mix_of_classes_weighs_the_recall_of_each():
    # a model that always says 1: recall 0, 1, and class 2 does not occur. Mix 1/4, 1/2, 1/4: (1/2) / (3/4)
    module = nn.Linear(1, 3).double()
    x, y = torch.ones(4, 1, dtype=F), torch.tensor([0, 0, 0, 1])
    evaluator = Evaluator(module, x, y)
    evaluator.mixes = {"slow_classes": torch.tensor([0.25, 0.5, 0.25])}
    always_one = torch.tensor([0.0, 0, 0, 0, 9, 0], dtype=F)
    assert evaluator(always_one)["acc/slow_classes"] == pytest.approx(2 / 3)
    assert evaluator(always_one)["acc"] == 0.25
    evaluator.mixes = {"slow_classes": torch.tensor([0.5, 0.5])}  # nobody holds class 2
    assert evaluator(always_one)["acc/slow_classes"] == 0.5
