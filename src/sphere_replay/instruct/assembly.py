"""From a configuration to a learner with all its parts, each on its own random stream."""

from dataclasses import replace
from pathlib import Path

from sphere_replay.instruct.classification import load_classification
from sphere_replay.instruct.config import InstructConfig
from sphere_replay.instruct.encoding import PromptEncoder
from sphere_replay.instruct.generated import generated_corpus
from sphere_replay.instruct.models import load_base
from sphere_replay.instruct.stream import TaskStream, build_stream, chosen
from sphere_replay.instruct.tasks import ORDERS, Corpus
from sphere_replay.language import LanguageReplay, TokenExamples, TokenMemory, longest_input
from sphere_replay.language.models import BaseModel
from sphere_replay.randomness import generator_for


def build_corpus(config: InstructConfig, data: Path | None) -> Corpus:
    """All tasks of the corpus, whatever the order: a tiny model is made from all of them."""
    if config.corpus == "generated":
        corpus = generated_corpus()
    else:
        needed = ORDERS["classification"][0] if config.model == "tiny" else config.task_names
        corpus = load_classification(needed, data)
    tasks = dict(corpus.tasks)
    if not config.instructions:
        tasks = {name: replace(task, instruction="") for name, task in tasks.items()}
    if config.texts is not None:
        tasks = {
            name: replace(task, train=chosen(task, config.texts)) for name, task in tasks.items()
        }
    return Corpus(corpus.name, tasks)


def build_base(config: InstructConfig, corpus: Corpus, out: Path) -> BaseModel:
    """The pretrained model; those made here are kept under `out/models`."""
    return load_base(config.model, corpus, out / "models", tiny=config.tiny)


def build_task_stream(config: InstructConfig, corpus: Corpus) -> TaskStream:
    """The run's own pass over the corpus."""
    return build_stream(
        corpus,
        config.task_names,
        config.seed,
        noise=config.noise,
        cap=config.cap,
        tests_per_task=config.tests_per_task,
        evaluate_on=config.evaluate_on,
    )


def build_encoder(config: InstructConfig, base: BaseModel) -> PromptEncoder:
    """The model's tokenizer within the run's lengths."""
    return PromptEncoder(
        base.tokenizer,
        base.is_encoder_decoder,
        config.max_source,
        longest_input(base.model),
        config.answer_tokens,
    )


def build_replay(config: InstructConfig, base: BaseModel) -> LanguageReplay:
    """An empty memory and the selection that draws from it."""
    return LanguageReplay(
        TokenMemory(config.capacity, generator=generator_for(config.seed, "admission")),
        config,
        generator=generator_for(config.seed, "replay"),
        recipe=config.recipe,
        examples=TokenExamples(base.tokenizer.pad_token_id, base.is_encoder_decoder),
    )
