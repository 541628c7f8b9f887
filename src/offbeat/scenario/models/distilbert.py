"""DistilBERT with LoRA: only low-rank adapters and the classifier are trained and sent. Needs the extra `text`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.settings import BelowOne, DataFile, Positive
from offbeat.scenario.models.model_interface import Shape, require_axes, seeded, weights_path
from offbeat.scenario.scenario_settings import Count, ScenarioSettings

ENCODER_FILES = ("config.json", "model.safetensors")
ADAPTED_LAYERS = [
    "q_lin",
    "v_lin",
    "query",
    "value",
]  # query and value projections, as DistilBERT and as BERT name them


@dataclass(frozen=True, kw_only=True)
class DistilBert(ScenarioSettings):
    """DistilBERT with LoRA adapters (extra `text`): 753 thousand numbers are sent for 20 classes.

    `weights` is a folder with config.json and model.safetensors; a relative path starts at the data root. Nothing is
    downloaded. Similar encoders (BERT, MiniLM) work too: adapters go to their query and value projections. Inputs are
    token numbers (length,) of the encoder's tokenizer.
    """

    weights: DataFile = "distilbert-base-uncased"  # a folder
    rank: Count = 8  # of the adapters
    alpha: Positive = 16.0  # adapters are scaled by alpha / rank
    dropout: BelowOne = 0.0  # before the adapters

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        require_axes("distilbert", input_shape, num_outputs, ("length",), "cnn for images, lstm for series")
        transformers, peft = _import_libraries()
        folder = weights_path(self.weights)
        for name in ENCODER_FILES:
            if not (folder / name).is_file():
                files = " and ".join(ENCODER_FILES)
                raise DataError(f"{folder / name} is missing: put {files} of the encoder into that folder")

        def make() -> nn.Module:
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

        return seeded(seed, make)

    def adapt(self, encoder: nn.Module, peft: Any) -> nn.Module:
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
    """Compute scores from token numbers; padding gets no attention."""

    def __init__(self, encoder: nn.Module, padding: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.padding = padding

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.encoder(input_ids=tokens, attention_mask=(tokens != self.padding).long()).logits
        return out


def _import_libraries() -> tuple[Any, Any]:
    try:
        import peft
        import transformers
    except ImportError as error:
        raise ConfigError(f"distilbert needs the extra 'text' ({error}): pip install 'offbeat[text]'") from None
    return transformers, peft


@contextmanager
def _without_progress_bars(transformers: Any) -> Iterator[None]:
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
    """Convert errors of the files to a DataError of one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        why = " ".join(str(error).split())[:300]
        raise DataError(f"{folder} does not have an encoder that transformers can read: {why}") from None
