"""Token rows: what each kind of model reads, what is cut, and what is refused before training."""

import pytest
import torch

from instruct.small import corpus, llama, t5, tokenizer
from sphere_replay.errors import DataError
from sphere_replay.instruct.encoding import PromptEncoder
from sphere_replay.instruct.tasks import Example, Task

TOPIC = corpus().tasks["topic"]
EXAMPLE = TOPIC.train[0]


def written(encoder: PromptEncoder, ids: torch.Tensor) -> str:
    """The text of tokens; a tokenizer may put a space behind a heading."""
    return " ".join(encoder.text(ids).split())


def plain(text: str) -> str:
    return " ".join(text.split())


def task_with(*labels: str) -> Task:
    example = Example("x", labels[0])
    return Task("odd", "T", "Which?", labels, (example,), (example,))


def test_an_encoder_reads_the_prompt_and_a_decoder_writes_the_label() -> None:
    encoder = PromptEncoder(tokenizer(), True, 64)
    (row,) = encoder.rows(TOPIC, [EXAMPLE])
    assert written(encoder, row["input_ids"]) == plain(TOPIC.prompt(EXAMPLE.sentence))
    assert row["input_ids"][-1] == tokenizer().eos_token_id
    assert encoder.text(row["labels"]).strip() == EXAMPLE.label
    assert row["labels"][-1] == tokenizer().eos_token_id
    assert row["attention_mask"].tolist() == [1] * len(row["input_ids"])


def test_a_decoder_reads_both_and_learns_the_label_only() -> None:
    encoder = PromptEncoder(tokenizer(), False, 64)
    (row,) = encoder.rows(TOPIC, [EXAMPLE])
    (prompt,) = encoder.prompts(TOPIC, [EXAMPLE.sentence])
    assert torch.equal(row["input_ids"][: len(prompt)], prompt)
    assert tokenizer().eos_token_id not in prompt.tolist()
    assert set(row["labels"][: len(prompt)].tolist()) == {-100}
    target = row["labels"][len(prompt) :]
    assert torch.equal(target, row["input_ids"][len(prompt) :])
    assert written(encoder, row["input_ids"]) == plain(
        f"{TOPIC.prompt(EXAMPLE.sentence)} {EXAMPLE.label}"
    )


@pytest.mark.parametrize("both", [True, False])
def test_a_long_sentence_is_cut_and_everything_else_stays(both: bool) -> None:
    encoder = PromptEncoder(tokenizer(), both, 24)
    long = " ".join(["the otter and the lynx"] * 40)
    ids, short = encoder.prompts(TOPIC, [long, EXAMPLE.sentence])
    text = written(encoder, ids)
    head, tail = plain(TOPIC.head), "Answer:"
    assert 20 <= len(ids) <= 24
    assert text.startswith(head)
    assert text.endswith(tail)
    kept = text.removeprefix(head).removesuffix(tail).strip()
    assert long.startswith(kept)
    assert len(kept) > 20
    assert written(encoder, short) == plain(TOPIC.prompt(EXAMPLE.sentence))


def test_instruction_and_options_must_leave_room_for_a_sentence() -> None:
    with pytest.raises(DataError, match=r"options of topic take \d+ tokens.*raise max_source"):
        PromptEncoder(tokenizer(), True, 3).check([TOPIC])


def test_a_label_that_tokenises_to_nothing_is_refused() -> None:
    for label in ("", " ", "..."):
        with pytest.raises(DataError, match="of odd tokenises to nothing"):
            PromptEncoder(tokenizer(), True, 64).check([task_with("fine", label)])


def test_so_is_a_label_that_the_tokenizer_cannot_write() -> None:
    class Forgetful:
        """Knows no word with a z."""

        eos_token_id = 1

        def __call__(self, text: str | list[str], **options: object) -> dict[str, list[int]]:
            assert isinstance(text, str)
            return {"input_ids": [ord(letter) for letter in text if letter != "z"]}

        def decode(self, ids: torch.Tensor, **options: object) -> str:
            return "".join(chr(number) for number in ids.tolist() if number > 1)

    with pytest.raises(DataError, match=r"'zoo' of odd comes back .* as 'oo'"):
        PromptEncoder(Forgetful(), True, 64).check([task_with("zoo")])


def test_an_example_longer_than_the_model_is_refused_before_training() -> None:
    base = llama(positions=50)
    limit = base.model.config.max_position_embeddings
    with pytest.raises(DataError, match=r"longer than the model's 50: lower max_source to 4\d"):
        PromptEncoder(tokenizer(), False, 64, limit).check([TOPIC])
    PromptEncoder(tokenizer(), False, 40, limit).check([TOPIC])
    PromptEncoder(tokenizer(), True, 64, None).check(list(corpus().tasks.values()))
    assert t5().is_encoder_decoder
