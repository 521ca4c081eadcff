"""Policies: lessons that leave something to learn, questions as the model takes them, refusals."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from coding.brief import brief, home, job_of
from sphere_replay.coding import grading
from sphere_replay.coding.evaluation import accuracy, greedy_programs
from sphere_replay.coding.grading import Grader, open_sandbox
from sphere_replay.coding.job import CodingJob, make_job
from sphere_replay.coding.micro_model import MicroSpec, build_qwen2, micro_tokenizer, near_wrong
from sphere_replay.coding.models import REQUEST, load_policy, prompt_ids, prompt_of
from sphere_replay.coding.presets import resolve
from sphere_replay.coding.problems import Problem, write_problems
from sphere_replay.coding.stages import lessons, load_problems
from sphere_replay.errors import DataError, Interrupted
from sphere_replay.language.models import BaseModel
from sphere_replay.sandbox import Sandbox, SandboxError
from sphere_replay.storage.trees import fingerprint, flatten, to_bytes

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def micro() -> BaseModel:
    return load_policy(brief(), home() / "models")


@pytest.fixture
def problems() -> list[Problem]:
    return [p for p in load_problems(brief(), None) if p.split == "probe" and p.stage == "text"]


def test_any_text_survives_the_micro_tokenizer(micro: BaseModel) -> None:
    for text in ("def f(x):\n    return x * 7 + 12\n", "tab\t, ünïcode 漢 and  spaces ", "'a' + s"):
        assert micro.tokenizer.decode(micro.tokenizer(text)["input_ids"]) == text


def test_lessons_are_near_misses_and_nothing_by_heart() -> None:
    lesson = next(p for p in lessons() if p.stage == "arithmetic")
    assert near_wrong(lesson)
    assert not any("==" in program for program in near_wrong(lesson))
    assert lesson.reference not in near_wrong(lesson)


def test_the_policy_is_built_once_and_the_same_everywhere(micro: BaseModel, tmp_path: Path) -> None:
    spec = MicroSpec(width=16, feed_forward=16, heads=2, layers=1, steps=2)
    few = lessons()[:20]
    wrong = {p.id: near_wrong(p)[:2] for p in few}
    tokenizer = micro_tokenizer(few, wrong, 300)
    first, second = (build_qwen2(tokenizer, spec).state_dict() for _ in range(2))
    assert fingerprint(first) == fingerprint(second)
    again = load_policy(brief(), home() / "models")
    assert fingerprint(again.model.state_dict()) == fingerprint(micro.model.state_dict())


def test_samples_of_one_problem_differ_and_some_greedy_programs_are_right(
    micro: BaseModel, problems: list[Problem]
) -> None:
    with Sandbox(workers=2, cache=home() / "verdicts") as sandbox:
        grader = Grader(sandbox)
        right = accuracy(micro.model, micro.tokenizer, problems, grader, length=32)
    assert 0 < right < 1
    ids = torch.tensor(prompt_ids(problems[:1], micro.tokenizer))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        drawn = micro.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            num_return_sequences=8,
            max_new_tokens=32,
        )
    assert len({tuple(row) for row in drawn.tolist()}) > 1


def test_greedy_programs_do_not_depend_on_their_batch(
    micro: BaseModel, problems: list[Problem]
) -> None:
    micro.model.train()
    together = greedy_programs(micro.model, micro.tokenizer, problems, length=32)
    alone = greedy_programs(micro.model, micro.tokenizer, problems, length=32, tokens=1)
    assert together == alone
    assert micro.model.training


def test_a_model_with_a_chat_template_is_asked_in_a_message(
    micro: BaseModel, problems: list[Problem]
) -> None:
    tokenizer = load_policy(brief(), home() / "models").tokenizer
    assert prompt_of(problems[0], tokenizer) == problems[0].prompt
    tokenizer.chat_template = TEMPLATE
    asked = prompt_of(problems[0], tokenizer)
    assert asked == [{"role": "user", "content": problems[0].prompt.rstrip() + REQUEST}]
    (ids,) = prompt_ids(problems[:1], tokenizer)
    assert tokenizer.decode(ids) == f"<user>{problems[0].prompt.rstrip()}{REQUEST}<assistant>"


def saved(tmp_path: Path, chat: bool) -> str:
    """The micro policy as a folder of somebody's own, and problems to go with it."""
    base = load_policy(brief(), home() / "models")
    if chat:
        base.tokenizer.chat_template = TEMPLATE
    base.model.save_pretrained(tmp_path / "policy")
    base.tokenizer.save_pretrained(tmp_path / "policy")
    write_problems(tmp_path / "mine.jsonl", load_problems(brief(), None))
    return str(tmp_path / "policy")


def test_adapters_chat_and_problems_of_a_file_go_through_the_trainer(tmp_path: Path) -> None:
    """The path of the larger models: a folder, a template, LoRA, prepared problems."""
    config = brief(
        "sphere",
        model=saved(tmp_path, chat=True),
        problems="mine",
        stages="text",
        rank=2,
        max_prompt=200,
        max_completion=8,
    )
    job = make_job(config, tmp_path, tmp_path)
    records = []

    def after_step(record: Any, seconds: Any = None) -> None:
        records.append(record)
        parameters = job.state_dict()["parameters"]
        assert parameters
        assert all("lora_" in name for name in parameters)
        flatten(job.state_dict())

    job.run(0, after_step)
    assert records[0]["notes"] == []
    results = job.results()
    assert results["prompts"]["chat_template"]
    # Cut off after eight tokens no program is right: every group is uniform, and it is said.
    assert results["replay"]["updates_without_mixed_group"] == len(job) - 1
    assert results["reward"]["hollow_share"] is None


def test_long_prompts_are_left_out_and_noted() -> None:
    job = job_of(brief(max_prompt=15))
    assert job._notes[-1].endswith("prompts of more than 15 tokens: left out")
    assert int(job._notes[-1].split()[0]) > 0
    job.close()


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    transformers = importlib.import_module("transformers")
    base = load_policy(brief(), home() / "models")
    config = transformers.T5Config(
        vocab_size=len(base.tokenizer), d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    base.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(DataError, match="encoder-decoder: GRPO needs a decoder"):
        load_policy(resolve("coding-smollm2", model=str(tmp_path)), tmp_path)


def test_a_machine_without_isolation_is_told_how_to_proceed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*args: object, **settings: object) -> Sandbox:
        raise SandboxError("programs are not run here")

    monkeypatch.setattr(grading, "Sandbox", refuse)
    with pytest.raises(DataError, match=r"not run here\. .*sandbox check.*--set unsafe=true"):
        make_job(brief(), None, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(importlib.import_module("sys").modules, "trl", None)
    with pytest.raises(DataError, match=r"pip install 'sphere-replay\[coding\]'"):
        make_job(brief(), None, tmp_path)


def test_adapters_begin_alike_for_every_selection() -> None:
    def begin(select: str) -> bytes:
        config = brief(select, rank=2)
        sandbox = open_sandbox(config, None)
        job = CodingJob(
            config, load_problems(config, None), load_policy(config, home() / "models"), sandbox
        )
        job.close()
        return to_bytes({k: v.detach() for k, v in job._trainable.items()})

    assert begin("sphere") == begin("uniform")


def test_a_closed_loop_closes_its_sandbox() -> None:
    job = job_of(brief(host="none", stages="text"))

    def stop(record: Any, seconds: Any = None) -> None:
        raise Interrupted("at once")

    with pytest.raises(Interrupted):
        job.run(0, stop)
    with pytest.raises(ValueError, match="closed"):
        job._sandbox.run("", "")
