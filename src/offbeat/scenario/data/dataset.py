"""What every data set looks like."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from offbeat.core.errors import DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    x_train: Tensor = field(repr=False)
    y_train: Tensor = field(repr=False)
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    num_classes: int | None  # None: real targets

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) != len(y) or len(x) == 0:
                raise DataError(f"data set {self.name!r}: {len(x)} {part} inputs, {len(y)} labels")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x_train.shape[1:])

    @property
    def summary(self) -> str:
        shape = "×".join(map(str, self.input_shape))
        target = "real targets" if self.num_classes is None else f"{self.num_classes} classes"
        return f"{self.name}: {len(self.x_train)} training and {len(self.x_test)} test examples, inputs {shape}, {target}"
