"""Models for texts and series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError
from offbeat.core.settings import BelowOne, least
from offbeat.scenario.models.model_interface import Shape, check_shapes, require_axes, seeded
from offbeat.scenario.scenario_settings import Count, Counts, ScenarioSettings


@dataclass(frozen=True, kw_only=True)
class TextCnn(ScenarioSettings):
    """Kim's TextCNN: word vectors, filters over 3, 4 and 5 words, the maximum of each, one linear layer.

    Inputs are word numbers (length,), 0 for padding. Words beyond the vocabulary share its last entry, so frequent
    words should have small numbers.
    """

    vocabulary: Annotated[int, least(2, "must be at least 2, padding and one word")] = 20_000
    embedding: Count = 100  # length of a word vector
    filters: Count = 100  # of each width
    widths: Counts = (3, 4, 5)  # of the filters, in words
    dropout: BelowOne = 0.5  # before the last layer

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        require_axes("textcnn", input_shape, num_outputs, ("length",), "cnn for images, lstm for series")
        if input_shape[0] < max(self.widths):
            widest = f"the widest filter, {max(self.widths)}"
            raise ConfigError(f"textcnn: texts of {input_shape[0]} words are shorter than {widest}")
        return seeded(seed, lambda: TextCnnModule(self, num_outputs))


class TextCnnModule(nn.Module):
    """The module of TextCnn."""

    def __init__(self, settings: TextCnn, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(settings.vocabulary, settings.embedding)
        inputs, filters = settings.embedding, settings.filters
        self.filters = nn.ModuleList(nn.Conv1d(inputs, filters, width) for width in settings.widths)
        self.dropout = nn.Dropout(settings.dropout)
        self.head = nn.Linear(len(settings.widths) * settings.filters, outputs)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words.clamp(max=self.words.num_embeddings - 1)).transpose(1, 2)
        strongest = [f(x).relu().amax(2) for f in self.filters]
        out: Tensor = self.head(self.dropout(torch.cat(strongest, 1)))
        return out


@dataclass(frozen=True, kw_only=True)
class Lstm(ScenarioSettings):
    """An LSTM layer and a fully connected layer on its last state, for series (length, features) or plain features."""

    hidden: Count = 64  # units

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        check_shapes(input_shape, num_outputs)
        if len(input_shape) > 2:
            actual = f"got shape {tuple(input_shape)}"
            raise ConfigError(f"lstm needs inputs (length, features) or (features,), {actual}: use cnn for images")
        return seeded(seed, lambda: LstmModule(input_shape[-1], self.hidden, num_outputs))


class LstmModule(nn.Module):
    """The module of Lstm."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:  # plain features are a series of one step
            x = x.unsqueeze(1)
        states, _ = self.lstm(x)
        out: Tensor = self.head(states[:, -1])
        return out
