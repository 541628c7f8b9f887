"""20 Newsgroups and AG News, from small files of the published layouts."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.scenario.data import texts
from offbeat.scenario.data.texts import AgNews, TwentyNews, make_vocabulary, number_texts, split_words
from scenario import messages


def test_words_are_lower_case_and_keep_their_apostrophe():
    assert split_words("It's NASA's 3rd try -- really?\\no") == ["it's", "nasa's", "3rd", "try", "really", "no"]


def test_a_vocabulary_is_the_most_frequent_words_in_a_fixed_order():
    # b three times, a and c twice each (alphabet decides), d once; 0 is padding, 1 unknown
    known = make_vocabulary(["b a b", "c b a c d"], size=5)
    assert known == {"b": 2, "a": 3, "c": 4}
    assert number_texts(["b d a", "c c c c c", ""], known, 4).tolist() == [[2, 1, 3, 0], [4, 4, 4, 4], [1, 0, 0, 0]]


def news(root):
    for part, posts in (("train", 2), ("test", 1)):
        for group, word in (("sci.space", "moon"), ("rec.autos", "engine")):
            folder = root / "20news" / f"20news-bydate-{part}" / group
            folder.mkdir(parents=True)
            for i in range(posts):
                text = f"From: {group}@somewhere\nSubject: caf\xe9\n\nthe {word} the\n\nsecond paragraph {i}\n"
                (folder / str(i)).write_bytes(text.encode("latin1"))
    return root / "20news"


def test_posts_become_word_numbers_and_stay_available_as_text(root):
    news(root)
    data = TwentyNews(vocabulary=6, length=4).load()
    assert data.class_names == ("rec.autos", "sci.space")
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 0, 1, 1], [0, 1])
    # counts: the 8, paragraph 4, second 4, then 0 1 engine moon 2 each; four words fit
    assert data.x_train.tolist() == [[2, 1, 2, 4]] * 4  # the engine the second: engine is beyond the vocabulary
    assert data.vocabulary == 6
    assert TwentyNews().texts().train[0] == "the engine the\n\nsecond paragraph 0\n"
    assert TwentyNews(headers=True).texts().train[2].startswith("From: sci.space@somewhere\nSubject: café")


def test_a_newsgroup_missing_from_one_part_is_named(root):
    home = news(root)
    for post in (home / "20news-bydate-test" / "sci.space").iterdir():
        post.unlink()
    (home / "20news-bydate-test" / "sci.space").rmdir()
    with pytest.raises(DataError, match=messages.NEWSGROUP_MISSING):
        TwentyNews().load()


class Pieces:
    """What a pretrained tokenizer does, as far as it is used here."""

    pad_token_id = 0

    @classmethod
    def from_pretrained(cls, folder, local_files_only):
        assert local_files_only
        return cls()

    def __len__(self):
        return 100

    def __call__(self, texts, padding, truncation, max_length, return_tensors):
        return {"input_ids": torch.tensor([[7] * max_length for _ in texts])}


def test_a_pretrained_tokenizer_numbers_its_own_pieces(root, tmp_path, monkeypatch):
    news(root)
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoTokenizer=Pieces))
    data = TwentyNews(length=3, tokenizer=str(tmp_path)).load()
    assert data.x_test.tolist() == [[7, 7, 7]] * 2
    assert data.vocabulary == 100
    monkeypatch.setattr(Pieces, "pad_token_id", 9)
    with pytest.raises(DataError, match=messages.TOKENIZER_PADDING):
        TwentyNews(tokenizer=str(tmp_path)).load()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DataError, match=messages.TOKENIZER_EXTRA):
        TwentyNews(tokenizer=str(tmp_path)).load()
    with pytest.raises(DataError, match=messages.TOKENIZER_FOLDER):
        TwentyNews(tokenizer=str(tmp_path / "nothing")).load()


def test_a_tokenizer_lies_below_the_data_root_unless_its_whole_path_is_given(root, tmp_path, monkeypatch):
    news(root)
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoTokenizer=Pieces))
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "pieces").mkdir(parents=True)
    monkeypatch.chdir(elsewhere)  # where a command is given from does not matter
    with pytest.raises(DataError, match=rf"tokenizer = 'pieces': {root / 'pieces'} is not a folder"):
        TwentyNews(tokenizer="pieces").load()
    (root / "pieces").mkdir()
    assert TwentyNews(tokenizer="pieces", length=3).load().vocabulary == 100


@pytest.fixture
def ag(root, monkeypatch):
    monkeypatch.setattr(texts, "AG_NEWS_TRAIN_MD5", None)  # these are not the published files
    monkeypatch.setattr(texts, "AG_NEWS_TEST_MD5", None)
    (root / "ag_news").mkdir()
    return root / "ag_news"


def rows(n: int) -> str:
    return "".join(f'"{1 + i % 4}","Title {i}","a ""quoted"" line\\and another"\n' for i in range(n))


def test_ag_news_reads_both_files(ag):
    (ag / "train.csv").write_text(rows(8))
    (ag / "test.csv").write_text(rows(4))
    texts = AgNews().texts()
    assert texts.y_train.tolist() == [0, 1, 2, 3] * 2
    assert texts.test[1] == 'Title 1 a "quoted" line and another'
    assert AgNews().load().notes == ()


def test_without_train_csv_the_test_file_is_split_and_the_summary_says_so(ag):
    (ag / "test.csv").write_text(rows(40))  # ten of each class: the fifth and the tenth are held out
    data = AgNews(length=5).load()
    assert (len(data.x_train), len(data.x_test)) == (32, 8)
    assert data.y_test.bincount().tolist() == [2, 2, 2, 2]
    assert "train.csv is missing" in data.summary


@pytest.mark.parametrize(("text", "message"), messages.AG_NEWS_TEXTS)
def test_damaged_news_are_refused(ag, text, message):
    (ag / "test.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        AgNews().load()


def test_a_damaged_train_csv_is_not_taken_for_a_missing_one(ag, monkeypatch):
    (ag / "test.csv").write_text(rows(8))
    (ag / "train.csv").write_text(rows(8))
    monkeypatch.setattr(texts, "AG_NEWS_TRAIN_MD5", "0" * 32)
    with pytest.raises(DataError, match=messages.AG_NEWS_DAMAGED):
        AgNews().load()
