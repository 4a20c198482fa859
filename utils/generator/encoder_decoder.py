"""Answers by an encoder-decoder, such as a fine-tuned FlanT5, run by transformers because vLLM does not serve these.

`choose` is the entry point: utils/generation/engines.py imports this module if a model's config says encoder-decoder.
"""

import asyncio
import sys
from argparse import Namespace
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prompts import History, Prompt
from utils.cli import UserError
from utils.cli.progress import announce
from utils.generation.chat import choose_length
from utils.generation.engines import open_completions, trained_settings
from utils.generation.fitting import Entry, Trimmed, fit_items, fit_trimmed
from utils.generation.model import Model, Policy
from utils.generation.requests import FURTHER, Completion, Sampling
from utils.generator.plain_text import Passages, PlainText
from utils.models.devices import fitting
from utils.models.hub import model_folder
from utils.models.machine import describe_weights
from utils.models.memory import check_before_fetching, smallest_gpu

NUM_BEAMS = 4  # as in LaMP's code
INPUT_TOKENS, TARGET_TOKENS = 512, 128  # lengths of input and output in LaMP's paper
WAITING = 4  # times a batch's prompts: requests among which prompts of similar length are chosen
ANY_LENGTH = 2**31  # tokens


@dataclass(frozen=True)
class TextModel(Model):
    """An encoder-decoder, which reads plain text; `fused` means fusion in decoder."""

    fused: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        return {"num_beams": NUM_BEAMS, "fusion": "decoder" if self.fused else "none"}

    def open_engine(self, args: Namespace) -> "TransformersEngine":
        return TransformersEngine(args, self)

    def describe_memory(self, args: Namespace) -> list[str]:
        return describe_weights(self.addr, args.cache_dir, 4 if args.dtype == "float32" else 2)

    def fit(
        self, prompt: Prompt, items: Sequence[str] | History, join: Callable[[list[str]], str], **values: str
    ) -> Trimmed:
        if isinstance(items, History):
            what = "an encoder-decoder reads plain text, but a prompt of this benchmark is a conversation"
            raise UserError(f"--model_addr {self.addr}: {what}\n  give a chat model")
        return self._fit(partial(fit_items, prompt, chat=self.chat, join=join, **values), items)

    def fit_trimmed(
        self, prompt: Prompt, entries: Sequence[Entry], join: Callable[[list[str]], str], **values: str
    ) -> Trimmed:
        return self._fit(partial(fit_trimmed, prompt, chat=self.chat, join=join, **values), entries)

    def _fit(self, fit: Callable[..., Any], items: Sequence[Any]) -> Trimmed:
        """Fit a prompt, or each passage of a fused one, into the budget.

        A question that exceeds the budget without any item is cut at its end, as by LaMP's tokenizer, because an email
        may be longer than the model's input.
        """
        budget = self.length - self.policy.max_tokens
        groups = [[item] for item in items] if self.fused and items else [items]
        found = [fit(group, budget=budget) for group in groups]
        if found[0] is None:
            [*whole, end] = fit([], budget=ANY_LENGTH).prompt
            cut = array("i", [*whole[: budget - 1], end])
            return Trimmed(Passages((cut,)) if self.fused else cut, 0, len(items), question_cut=True)
        found = [Trimmed(**vars(one)) for one in found]
        if not self.fused:
            return found[0]
        used = [one for one in found if one.num_contexts_used]
        return Trimmed(
            Passages(tuple(one.prompt for one in used or found[:1])),
            len(used),
            len(items) - len(used),
            any(one.context_cut for one in found),
            sum(one.num_contexts_trimmed for one in used),
            any(one.question_cut for one in found),
        )


def text_model(
    addr: str, identity: str, chat: PlainText, read: int, written: int, fused: bool, schema: Any
) -> TextModel:
    """Return a model with these lengths; outputs are never retried, because beam search is deterministic."""
    policy = Policy(0.0, 1.0, written, 0, 0, "never", schema)
    return TextModel(addr, identity, chat, read + written, policy, fused=fused)


def choose(args: Namespace, identity: str, schema: dict[str, Any] | str) -> TextModel:
    """Return the encoder-decoder that `args` names, not loaded yet, set its lengths, and print how it is run."""
    refuse_flags(args)
    trained = trained_settings(args.model_addr, args.cache_dir)
    chat = PlainText(args.model_addr, args.cache_dir)
    written = min(args.max_tokens, trained.get("max_target_length", args.max_tokens))
    wanted = trained.get("max_input_length", INPUT_TOKENS) + written
    args.max_tokens, args.max_model_len = written, choose_length(chat, args.max_model_len, written, wanted)
    read, fused = args.max_model_len - written, trained.get("fusion") == "decoder"
    how = "fusion in decoder, " if fused else ""
    print(
        f"{args.model_addr}: an encoder-decoder, which transformers runs: {how}{NUM_BEAMS} beams, "
        f"reads {read} tokens and writes {written}",
        file=sys.stderr,
    )
    model = text_model(args.model_addr, identity, chat, read, written, fused, schema)
    completions = open_completions(args, args.model_addr, identity, **model.settings)
    return replace(model, completions=completions, trained=trained)


def refuse_flags(args: Namespace) -> None:
    """Raise UserError for flags that beam search in a single process of transformers does not support."""
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


class TransformersEngine:
    """An encoder-decoder in this process, which answers waiting requests in batches of similar length."""

    def __init__(self, args: Namespace, model: TextModel):
        announce(f"loading {model.addr}")
        import torch

        from utils.generator.beams import room_of
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
        from utils.generator.beams import batches

        while True:
            await asyncio.sleep(0)  # lets answered requests be stored and new ones be made
            if not self._waiting:
                return
            waiting = self._waiting
            try:
                numbers = next(batches([prompt for prompt, *_ in waiting], self._room))
                batch = [waiting[number] for number in numbers]
                self._waiting = [one for number, one in enumerate(waiting) if number not in set(numbers)]
                completions = await asyncio.to_thread(self._write, batch)
            except Exception as error:  # ends all requests, or the run would wait for the others for ever
                for *_, answer in [*waiting, *self._waiting]:
                    if not answer.done():
                        answer.set_exception(error)
                self._waiting = []
                return
            for (*_, answer), completion in zip(batch, completions, strict=True):
                if not answer.done():  # a leaving run cancels it
                    answer.set_result(completion)

    def _write(self, batch: list[tuple[Any, int, asyncio.Future]]) -> list[Completion]:
        from utils.generator.beams import write

        prompts = [prompt for prompt, *_ in batch]
        what = f"{len(prompts)} prompts with {NUM_BEAMS} beams, on {self.device}"
        with fitting(what, "give a smaller --max_model_len"):
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
        self._is_closed = True  # a running batch ends at its next token
