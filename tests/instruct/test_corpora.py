"""Corpora and streams: what is read, in which order, and what is refused."""

import json
import os
from pathlib import Path

import pytest

from sphere_replay.errors import DataError
from sphere_replay.extras import require
from sphere_replay.instruct import generated
from sphere_replay.instruct.classification import load_classification
from sphere_replay.instruct.generated import generated_corpus
from sphere_replay.instruct.stream import EvaluateOn, build_stream
from sphere_replay.instruct.tasks import ORDERS, Corpus, Example, Task

pyarrow, parquet = require("pyarrow", "instruct"), require("pyarrow.parquet", "instruct")
DATA = os.environ.get("SPHERE_DATA")
CARDS = {
    "mnli": {"family": "NLI", "instruction": "Related?", "labels": ["neutral", "entailment"]},
    "copa": {"family": "COPA", "instruction": "", "labels": ["A", "B"]},
}


def write(home: Path, task: str, split: str, rows: list[tuple[str, str]]) -> None:
    (home / "instruct" / task).mkdir(parents=True, exist_ok=True)
    columns = {"sentence": [row[0] for row in rows], "label": [row[1] for row in rows]}
    parquet.write_table(pyarrow.table(columns), home / "instruct" / task / f"{split}.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        write(tmp_path, "mnli", split, [(f"{split} 1", "neutral"), (f"{split} 2", "-")])
        write(tmp_path, "copa", split, [(f"{split} 3", "A"), (f"{split} 4", "B")])
    (tmp_path / "instruct" / "tasks.json").write_text(json.dumps(CARDS))
    return tmp_path


def sized(name: str, train: int, test: int = 5) -> Task:
    return Task(
        name,
        "T",
        "Which?",
        ("a", "b"),
        tuple(Example(f"{name} train {i}", "ab"[i % 2]) for i in range(train)),
        tuple(Example(f"{name} test {i}", "ab"[i % 2]) for i in range(test)),
    )


def test_a_prompt_has_task_dataset_instruction_options_sentence_and_answer(folder: Path) -> None:
    tasks = load_classification(["mnli", "copa"], folder).tasks
    assert tasks["mnli"].prompt("S") == (
        "Task:NLI\nDataset:mnli\nRelated?\nOption: neutral, entailment \nS\nAnswer:"
    )
    assert tasks["copa"].prompt("S") == "Task:COPA\nDataset:copa\nS\nAnswer:"


def test_examples_without_a_label_are_left_out(folder: Path) -> None:
    task = load_classification(["mnli"], folder).tasks["mnli"]
    assert task.train == (Example("train 1", "neutral"),)
    assert task.test == (Example("test 1", "neutral"),)


def test_the_folder_may_come_from_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPHERE_DATA", str(folder))
    found = load_classification(["copa"])
    assert found.checksum == load_classification(["copa"], folder).checksum
    monkeypatch.delenv("SPHERE_DATA")
    with pytest.raises(DataError, match=r"--data or SPHERE_DATA, or use corpus=generated"):
        load_classification(["copa"])


def test_missing_and_damaged_files_are_named(folder: Path) -> None:
    (folder / "instruct" / "copa" / "test.parquet").unlink()
    with pytest.raises(DataError, match=r"copa/test\.parquet does not exist.*to_parquet"):
        load_classification(["mnli", "copa"], folder)
    (folder / "instruct" / "mnli" / "train.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"mnli/train\.parquet is not a readable Parquet file"):
        load_classification(["mnli"], folder)
    with pytest.raises(DataError, match=r"tasks\.json does not describe the task rte"):
        load_classification(["rte"], folder)
    (folder / "instruct" / "tasks.json").unlink()
    with pytest.raises(DataError, match=r"tasks\.json does not exist"):
        load_classification(["mnli"], folder)


def test_columns_and_labels_are_checked(folder: Path) -> None:
    write(folder, "copa", "train", [("x", "C")])
    with pytest.raises(DataError, match=r"training example 0 of copa has the label 'C'.*A, B"):
        load_classification(["copa"], folder)
    path = folder / "instruct" / "copa" / "train.parquet"
    parquet.write_table(pyarrow.table({"text": ["x"], "label": ["A"]}), path)
    with pytest.raises(DataError, match="has the columns text, label; it needs sentence, label"):
        load_classification(["copa"], folder)


def test_the_orders_are_permutations_and_the_papers_begin_as_printed() -> None:
    for orders in ORDERS.values():
        assert len(orders) == 3
        assert all(sorted(order) == sorted(orders[0]) for order in orders)
    heads = [order[:3] for order in ORDERS["classification"]]
    assert heads == [
        ("mnli", "cb", "wic"),
        ("multirc", "boolq", "wic"),
        ("yelp", "amazon", "mnli"),
    ]
    assert [order[-1] for order in ORDERS["classification"]] == ["yahoo", "yahoo", "wic"]


def test_one_pass_over_the_benchmark_is_860_updates() -> None:
    """13 tasks of 1000 examples, CB with 250 and COPA with 400; partial batches are kept."""
    order = ORDERS["classification"][0]
    sizes = {name: {"cb": 250, "copa": 400}.get(name, 1200) for name in order}
    corpus = Corpus("classification", {name: sized(name, size) for name, size in sizes.items()})
    stream = build_stream(corpus, order, 0, cap=1000, tests_per_task=5)
    batches = list(stream.batches(16))
    assert len(batches) == 860
    assert sum(len(places) for _, places in batches) == len(stream) == 13_650
    assert [task for task, _ in batches] == sorted(task for task, _ in batches)


def test_wrong_answers_are_exactly_as_many_as_asked_and_other_labels_of_the_task() -> None:
    corpus = generated_corpus()
    name = next(iter(corpus.tasks))
    streams = [
        build_stream(corpus, [name], 3, cap=50, tests_per_task=20, noise=noise).tasks[0]
        for noise in (0.0, 0.4)
    ]
    clean, noisy = streams
    assert [e.sentence for e in clean.train] == [e.sentence for e in noisy.train]
    changed = [b.label for a, b in zip(clean.train, noisy.train, strict=True) if a != b]
    assert len(changed) == 20
    assert set(changed) <= set(clean.task.labels)
    assert clean.judged == noisy.judged


def test_seeds_shuffle_the_stream_and_leave_the_tests_alone() -> None:
    corpus = Corpus("c", {"x": sized("x", 30, 20)})
    first, again, other = (
        build_stream(corpus, ["x"], seed, cap=10, tests_per_task=7) for seed in (0, 0, 1)
    )
    assert first.digest == again.digest != other.digest
    assert first.tasks[0].judged == other.tasks[0].judged
    assert len(first.tasks[0].judged) == 7
    assert set(first.tasks[0].train) != set(other.tasks[0].train)


def test_development_examples_are_what_the_cap_left_over() -> None:
    corpus = Corpus("c", {"x": sized("x", 30, 20)})
    options = {"cap": 22, "tests_per_task": 100, "evaluate_on": EvaluateOn.DEVELOPMENT}
    part = build_stream(corpus, ["x"], 3, **options).tasks[0]  # type: ignore[arg-type]  # mixed
    assert sorted(item.sentence for item in (*part.train, *part.judged)) == sorted(
        item.sentence for item in corpus.tasks["x"].train
    )
    with pytest.raises(DataError, match=r"x has no development examples: all 30.*Lower cap \(30\)"):
        build_stream(corpus, ["x"], 3, cap=30, tests_per_task=5, evaluate_on="development")


def test_the_generated_corpus_is_the_same_everywhere() -> None:
    corpus = generated_corpus(40, 10)
    assert corpus.checksum == generated_corpus(40, 10).checksum
    assert set(corpus.tasks) == set(ORDERS["generated"][0])
    for task in corpus.tasks.values():
        labels = {item.label for item in task.train}
        assert labels == set(task.labels), f"40 examples of {task.name} leave out a label"
        assert (len(task.train), len(task.test)) == (40, 10)


def test_generated_labels_follow_their_rules() -> None:
    tasks = generated_corpus(200, 10).tasks
    numbers = generated._NUMBERS
    for item in tasks["order"].train:
        first, second = (numbers.index(word) for word in item.sentence.split(" then "))
        assert item.label == str(first < second)
    for item in tasks["parity"].train:
        place = numbers.index(item.sentence.split()[0]) + 1
        assert item.label == ("odd" if place % 2 else "even")
    good = ("lovely", "superb", "charming", "brilliant", "delightful", "splendid")
    for item in tasks["review"].train:
        praised = item.sentence.split()[-1] in good
        assert item.label == ("Good" if praised != (" not " in item.sentence) else "Bad")


@pytest.mark.skipif(not DATA, reason="needs the texts: set SPHERE_DATA")
def test_the_real_benchmark_has_860_updates_and_no_unlabelled_examples() -> None:
    corpus = load_classification(ORDERS["classification"][0])
    stream = build_stream(corpus, ORDERS["classification"][2], 0, cap=1000, tests_per_task=50)
    assert len(list(stream.batches(16))) == 860
    assert all(item.label != "-" for task in corpus.tasks.values() for item in task.test)
