"""Models for texts and series: TextCnn, Lstm, and DistilBERT with LoRA, which needs the extra `text`."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.settings import BelowOne, DataFile, Positive, least
from offbeat.scenario.models.model_interface import SeededModel, Shape
from offbeat.scenario.scenario_settings import Count, Counts

ENCODER_FILES = ("config.json", "model.safetensors")
# query and value projections, as DistilBERT and as BERT name them
ADAPTED_LAYERS = ["q_lin", "v_lin", "query", "value"]


class TokenModel(SeededModel, ABC):
    """Base class of models for texts, which are word or token numbers."""

    axes = ("length",)
    instead = "cnn for images, lstm for series"


@dataclass(frozen=True, kw_only=True)
class TextCnn(TokenModel):
    """Kim's TextCNN: word vectors, filters over 3, 4 and 5 words, the maximum of each, one linear layer.

    Inputs are word numbers (length,), 0 for padding. Words beyond the vocabulary share its last entry, so frequent
    words should have small numbers.
    """

    vocabulary: Annotated[int, least(2, "must be at least 2, padding and one word")] = 20_000
    embedding: Count = 100  # length of a word vector
    filters: Count = 100  # of each width
    widths: Counts = (3, 4, 5)  # of the filters, in words
    dropout: BelowOne = 0.5  # before the last layer

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        if input_shape[0] < max(self.widths):
            widest = f"the widest filter, {max(self.widths)}"
            raise ConfigError(f"textcnn: texts of {input_shape[0]} words are shorter than {widest}")
        return TextCnnModule(self, num_outputs)


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
        """Compute the outputs of the model."""
        x = self.words(words.clamp(max=self.words.num_embeddings - 1)).transpose(1, 2)
        strongest = [f(x).relu().amax(2) for f in self.filters]
        out: Tensor = self.head(self.dropout(torch.cat(strongest, 1)))
        return out


@dataclass(frozen=True, kw_only=True)
class Lstm(SeededModel):
    """An LSTM layer and a fully connected layer on its last state, for series (length, features) or plain features."""

    hidden: Count = 64  # units

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        if len(input_shape) > 2:
            actual = f"got shape {tuple(input_shape)}"
            raise ConfigError(f"lstm needs inputs (length, features) or (features,), {actual}: use cnn for images")
        return LstmModule(input_shape[-1], self.hidden, num_outputs)


class LstmModule(nn.Module):
    """The module of Lstm."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of the model."""
        if x.dim() == 2:  # plain features are a series of one step
            x = x.unsqueeze(1)
        states, _ = self.lstm(x)
        out: Tensor = self.head(states[:, -1])
        return out


@dataclass(frozen=True, kw_only=True)
class DistilBert(TokenModel):
    """DistilBERT with LoRA adapters (extra `text`): 753 thousand numbers are sent for 20 classes.

    `weights` is a folder with config.json and model.safetensors; a relative path starts at the data root. Nothing is
    downloaded. Similar encoders (BERT, MiniLM) work too: adapters go to their query and value projections. Inputs are
    token numbers (length,) of the encoder's tokenizer.
    """

    weights: DataFile = "distilbert-base-uncased"  # a folder
    rank: Count = 8  # of the adapters
    alpha: Positive = 16.0  # adapters are scaled by alpha / rank
    dropout: BelowOne = 0.0  # before the adapters

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        try:
            import peft
            import transformers
        except ImportError as error:
            raise ConfigError(f"distilbert needs the extra 'text' ({error}): pip install 'offbeat[text]'") from None
        from offbeat.scenario.data.data_files import below_root  # other models need no data root

        folder = below_root(self.weights)
        for name in ENCODER_FILES:
            if not (folder / name).is_file():
                files = " and ".join(ENCODER_FILES)
                raise DataError(f"{folder / name} is missing: put {files} of the encoder into that folder")
        with _without_progress_bars(transformers), _reading_errors(folder):
            encoder = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder,
                num_labels=num_outputs,
                dtype="float32",
                ignore_mismatched_sizes=True,
                local_files_only=True,
                use_safetensors=True,
            )
        longest = getattr(encoder.config, "max_position_embeddings", None)
        if longest is not None and input_shape[0] > longest:
            raise ConfigError(f"distilbert: texts of {input_shape[0]} tokens, this encoder takes at most {longest}")
        return TokenClassifier(self.adapt(encoder, peft), encoder.config.pad_token_id or 0)

    def adapt(self, encoder: nn.Module, peft: ModuleType) -> nn.Module:
        """Freeze the encoder and add trainable adapters; the classifier stays trainable."""
        settings = peft.LoraConfig(
            task_type="SEQ_CLS",
            target_modules=ADAPTED_LAYERS,
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
        )
        try:
            adapted: nn.Module = peft.get_peft_model(encoder, settings)
        except ValueError as error:
            raise ConfigError(f"distilbert: peft cannot adapt a {type(encoder).__name__}: {error}") from None
        return adapted


class TokenClassifier(nn.Module):
    """Compute scores from token numbers; tokens equal to `padding` get no attention."""

    def __init__(self, encoder: nn.Module, padding: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.padding = padding

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the outputs of the model."""
        out: Tensor = self.encoder(input_ids=tokens, attention_mask=(tokens != self.padding).long()).logits
        return out


@contextmanager
def _without_progress_bars(transformers: ModuleType) -> Iterator[None]:
    """Silence progress bars and the warning that the classifier has new weights."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _reading_errors(folder: Path) -> Iterator[None]:
    """Convert errors of the encoder's files to a DataError of one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{folder} does not have an encoder that transformers can read: {reason}") from None
