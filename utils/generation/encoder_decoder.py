"""Answers by an encoder-decoder, such as a fine-tuned FlanT5: vLLM does not serve these, so transformers does.

The engine is one as any other; which one a run has is told by the model's config.
"""

import asyncio
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prompts import History, Prompt
from utils.cli import UserError
from utils.cli.progress import announce
from utils.files.manifest import folder_settings
from utils.generation.chat import choose_length
from utils.generation.engines import choose_generator, open_completions
from utils.generation.model import Model, Policy
from utils.generation.plain_text import Entry, PlainText, Trimmed, fit_text
from utils.generation.requests import FURTHER, Completion, Sampling
from utils.generation.thinking import template_variables
from utils.models.adapters import adapter_base
from utils.models.hub import model_file, model_folder, pinned_source, skipping_absent_hub
from utils.models.loading import loading
from utils.models.memory import check_before_fetching, smallest_gpu

NUM_BEAMS = 4  # as LaMP's code has it
INPUT_TOKENS, TARGET_TOKENS = 512, 128  # of LaMP's paper: what a model reads and writes
WAITING = 4  # times the prompts of a batch: requests that one of like length is chosen from


@dataclass(frozen=True)
class TextModel(Model):
    """An encoder-decoder, which reads plain text."""

    fused: bool = False

    def fit(
        self, prompt: Prompt, items: Sequence[str] | History, join: Callable[[list[str]], str], **values: str
    ) -> Trimmed:
        return self._fit(prompt, items, join, False, values)

    def fit_trimmed(
        self, prompt: Prompt, entries: Sequence[Entry], join: Callable[[list[str]], str], **values: str
    ) -> Trimmed:
        return self._fit(prompt, entries, join, True, values)

    def _fit(self, prompt: Prompt, items: Any, join: Any, trimmed: bool, values: dict[str, str]) -> Trimmed:
        budget = self.length - self.policy.max_tokens
        return fit_text(prompt, items, self.chat, budget, join, trimmed=trimmed, fused=self.fused, **values)


def text_model(
    addr: str, identity: str, chat: PlainText, read: int, written: int, fused: bool, schema: Any
) -> TextModel:
    """A model that reads and writes so many tokens; by beam search, which draws nothing and so is never asked again."""
    policy = Policy(0.0, 1.0, written, 0, 0, "never", schema)
    return TextModel(addr, identity, chat, read + written, policy, fused=fused)


def model_settings(model: Model | None) -> dict[str, Any]:
    """What settings hold of the way a model answers; nothing for one that vLLM or an API runs."""
    if not isinstance(model, TextModel):
        return {}
    return {"num_beams": NUM_BEAMS, "fusion": "decoder" if model.fused else "none"}


def is_encoder_decoder(model_addr: str, cache_dir: str | None) -> bool:
    """By its config; an adapter's base model is none."""
    if adapter_base(model_addr):
        return False
    from transformers import AutoConfig

    source = pinned_source(model_addr, cache_dir)
    try:
        with skipping_absent_hub(model_addr), loading(model_addr, "config.json"):
            return bool(AutoConfig.from_pretrained(model_addr, **source).is_encoder_decoder)
    except UserError:
        return False  # vLLM may know it; who loads it says what is wrong


def choose_answerer(args: Namespace, identity: str, schema: dict[str, Any] | str, length: int | None = None) -> Model:
    """`choose_generator`, or an encoder-decoder where the model is one, which is said."""
    if args.openai or not is_encoder_decoder(args.model_addr, args.cache_dir):
        return choose_generator(args, identity, schema, length)
    refuse_flags(args)
    trained = trained_settings(args.model_addr, args.cache_dir)
    chat = PlainText(args.model_addr, args.cache_dir)
    written = min(args.max_tokens, trained.get("max_target_length", args.max_tokens))
    wanted = trained.get("max_input_length", INPUT_TOKENS) + written
    args.max_tokens, args.max_model_len = written, choose_length(chat, args.max_model_len, written, wanted)
    fused = trained.get("fusion") == "decoder"
    how = "fusion in decoder, " if fused else ""
    print(
        f"{args.model_addr}: an encoder-decoder, which transformers runs: {how}{NUM_BEAMS} beams, "
        f"reads {args.max_model_len - written} tokens and writes {written}",
        file=sys.stderr,
    )
    model = text_model(args.model_addr, identity, chat, args.max_model_len - written, written, fused, schema)
    return replace(model, completions=open_completions(args, args.model_addr, identity, **model_settings(model)))


def refuse_flags(args: Namespace) -> None:
    """Raise UserError over what beam search by one process of transformers cannot do."""
    for flag, has_it, why in (
        ("--choose", args.choose is not None, "its options cannot be scored"),
        ("--num_generated_outputs", args.num_generated_outputs > 1, "beam search writes one answer"),
        ("--tensor_parallel_size", args.tensor_parallel_size > 1, "it runs on one GPU"),
        ("--data_parallel_size", args.data_parallel_size > 1, "it runs on one GPU; take --num_shards"),
        *((f"--{name}", vars(args)[name] not in (None, {}), "beam search does not sample, and it has no chat template")
          for name in FURTHER),
        ("--reasoning_parser", args.reasoning_parser is not None, "it writes no thoughts"),
    ):  # fmt: skip
        if has_it:
            raise UserError(f"{flag}: {args.model_addr} is an encoder-decoder: {why}\n  leave it out")


def trained_settings(model_addr: str, cache_dir: str | None) -> dict[str, Any]:
    """What utils/train_generator.py remembers beside a model, empty for any other."""
    path = model_file(model_addr, "manifest.json", cache_dir)
    settings = folder_settings(path.parent) if path else {}
    return settings if settings.get("script") == "utils/train_generator.py" else {}


def check_trained(args: Namespace, model: Model, task: str, prompt: Prompt, **asked: Any) -> dict[str, Any]:
    """The `trained_settings` of a fine-tuned generator, empty for any other model; notes where it is asked otherwise.

    Args:
        asked: how it is asked now, by the names in `trained_settings`.

    Raises:
        UserError: it was trained on another task, or to prompts as the chat template has them without variables.
    """
    if args.openai or not (isinstance(model, TextModel) or adapter_base(model.addr)):
        return {}
    trained = trained_settings(args.model_addr, args.cache_dir)
    if trained.get("task", task) != task:
        raise UserError(
            f"--model_addr {args.model_addr}: was fine-tuned on {trained['task']}\n"
            f"  {args.inputs_addr[0]} is of {task}: give a generator of that, or the base model"
        )
    if trained and template_variables(args):
        raise UserError(f"--chat_template_kwargs: {args.model_addr} was fine-tuned without them\n  leave it out")
    for name, value in asked.items():
        if name in trained and trained[name] != value:
            print(
                f"note: {args.model_addr} was trained with {name} {trained[name]}, here it is {value}", file=sys.stderr
            )
    if trained.get("prompt", {prompt.name: prompt.digest}) != {prompt.name: prompt.digest}:
        print(f"note: {args.model_addr} was trained with another prompt than this {prompt.name}", file=sys.stderr)
    return trained


class TransformersEngine:
    """An encoder-decoder in this process; requests that wait are answered in batches of like length."""

    def __init__(self, args: Namespace, model: TextModel):
        announce(f"loading {model.addr}")
        import torch

        from utils.generation.beams import room_of
        from utils.models.devices import check_devices, settle_dtype
        from utils.training.base_model import device_name, load_encoder_decoder, quiet_libraries

        quiet_libraries()
        check_devices()
        check_before_fetching(model.addr, args.cache_dir, smallest_gpu())
        dtype = settle_dtype(args.dtype)
        dtype = dtype if dtype == "auto" else getattr(torch, dtype)
        folder = str(model_folder(model.addr, args.cache_dir))
        self._model = load_encoder_decoder(folder, {"trust_remote_code": False}, dtype).eval()
        if torch.cuda.is_available():
            self._model.cuda()
        self._room = room_of(self._model, NUM_BEAMS, model.policy.max_tokens)
        self.concurrency = WAITING * self._room.prompts
        self._tokenizer = model.chat.tokenizer
        self.device = f"{device_name(1)}, {str(self._model.dtype).removeprefix('torch.')}"
        announce(f"loaded on {self.device}")
        self._waiting: list[tuple[Any, int, asyncio.Future]] = []
        self._work: asyncio.Task | None = None
        self._is_closed = False

    async def complete(self, model: str, prompt: Any, sampling: Sampling) -> Completion:
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, sampling.max_tokens, answer))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer_all())
        return await answer

    async def _answer_all(self) -> None:
        from utils.generation.beams import batches

        while True:
            await asyncio.sleep(0)  # for all that have an answer, to write it down and to ask for the next
            if not self._waiting:
                return
            numbers = next(batches([prompt for prompt, *_ in self._waiting], self._room))
            batch = [self._waiting[number] for number in numbers]
            self._waiting = [one for number, one in enumerate(self._waiting) if number not in set(numbers)]
            try:
                completions = await asyncio.to_thread(self._write, batch)
            except Exception as error:
                for *_, answer in batch:
                    answer.set_exception(error)
                return
            for (*_, answer), completion in zip(batch, completions, strict=True):
                if not answer.done():  # a run that leaves has cancelled it
                    answer.set_result(completion)

    def _write(self, batch: list[tuple[Any, int, asyncio.Future]]) -> list[Completion]:
        from utils.generation.beams import write

        prompts = [prompt for prompt, *_ in batch]
        found = write(self._model, self._tokenizer, prompts, NUM_BEAMS, batch[0][1], lambda: self._is_closed)
        return [
            Completion(
                text=self._tokenizer.decode(ids, skip_special_tokens=True),
                finish_reason="length" if is_cut else "stop",
                prompt_tokens=len(prompt),
                cached_tokens=0,
                completion_tokens=len(ids),
            )
            for prompt, (ids, is_cut) in zip(prompts, found, strict=True)
        ]

    async def close(self) -> None:
        self._is_closed = True  # a batch under way ends at its next token
