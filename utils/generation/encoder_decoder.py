"""Answers by an encoder-decoder, such as a fine-tuned FlanT5. transformers runs it, because vLLM does not serve it."""

import asyncio
import sys
from argparse import Namespace
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from prompts import History, Messages, Prompt
from utils.base.cli import FURTHER
from utils.base.errors import UserError, count_noun
from utils.base.progress import announce
from utils.generation.chat import PlainText, choose_length
from utils.generation.fitting import Entry, Fitted, Join, Trimmed, Window
from utils.generation.model import Model, Policy
from utils.generation.requests import Completion, Passages, Rendered, Sampling
from utils.models.devices import fitting
from utils.models.machine import check_before_fetching, describe_weights
from utils.models.model_folder import ModelFolder

NUM_BEAMS = 4  # as in LaMP's code
INPUT_TOKENS, TARGET_TOKENS = 512, 128  # lengths of input and output in LaMP's paper
WAITING = 4  # batches of waiting prompts, among which those of similar length form the next batch
ANY_LENGTH = 2**31  # tokens: no limit


@dataclass(frozen=True)
class TextWindow(Window):
    """An encoder-decoder's window, with separate limits for input and output; `fused` means fusion in decoder."""

    fused: bool = False

    def fit(self, prompt: Prompt, items: Sequence[str] | History, join: Join, **values: str) -> Trimmed:
        if isinstance(items, History):
            what = "an encoder-decoder reads plain text, but a prompt of this benchmark is a conversation"
            raise UserError(f"{self.chat.tokenizer.name_or_path}: {what}\n  use a chat model")
        return self._fit(items, lambda window, group: Window.fit(window, prompt, group, join, **values))

    def fit_trimmed(self, prompt: Prompt, entries: Sequence[Entry], join: Join, **values: str) -> Trimmed:
        return self._fit(entries, lambda window, group: Window.fit_trimmed(window, prompt, group, join, **values))

    def _render(self, messages: Messages) -> tuple[Rendered, Messages] | None:
        return super()._render(messages[-1:])  # an encoder-decoder reads only the last message

    def _fit(self, items: Sequence[Any], fit: Callable[[Window, Sequence[Any]], Fitted | None]) -> Trimmed:
        """Return a prompt that fits into the input; with fusion in decoder, each of its passages fits.

        A question that is too long even without items is cut at its end, as in LaMP's code, because an email may be
        longer than the model's input.
        """
        groups = [[item] for item in items] if self.fused and items else [items]
        fitted = [fit(self, group) for group in groups]
        if fitted[0] is None:
            uncut = fit(replace(self, length=ANY_LENGTH), [])
            [*whole, end] = uncut.prompt
            cut = array("i", [*whole[: self.budget - 1], end])
            prompt = Passages((cut,)) if self.fused else cut
            return Trimmed(prompt, 0, len(items), messages=uncut.messages, question_cut=True)
        passages = [Trimmed(**vars(passage)) for passage in fitted]
        if not self.fused:
            return passages[0]
        used = [passage for passage in passages if passage.num_contexts_used]
        return Trimmed(
            Passages(tuple(passage.prompt for passage in used or passages[:1])),
            len(used),
            len(items) - len(used),
            any(passage.context_cut for passage in passages),
            [message for passage in used or passages[:1] for message in passage.messages],
            sum(passage.num_contexts_trimmed for passage in used),
            any(passage.question_cut for passage in passages),
        )


@dataclass(frozen=True)
class TextModel(Model):
    """An encoder-decoder, which reads plain text. Its lengths are those of its training, unless flags say otherwise."""

    @property
    def settings(self) -> dict[str, Any]:
        return beam_settings(self.trained)

    def _open_chat(self) -> PlainText:
        return PlainText(self.folder)

    @cached_property
    def window(self) -> TextWindow:
        written = min(self.flags.max_tokens, self.trained.get("max_target_length", self.flags.max_tokens))
        wanted = self.trained.get("max_input_length", INPUT_TOKENS) + written
        length = choose_length(self.chat, self.flags.max_model_len, written, wanted)
        fused = self.settings["fusion"] == "decoder"
        print(
            f"{self.addr}: an encoder-decoder, run by transformers: {'fusion in decoder, ' if fused else ''}"
            f"{NUM_BEAMS} beams, reads {length - written} tokens and writes {written}",
            file=sys.stderr,
        )
        return TextWindow(self.chat, length, written, fused)

    @cached_property
    def policy(self) -> Policy:
        # Never retried, because beam search is deterministic.
        return Policy(0.0, 1.0, self.window.max_tokens, seed=0, max_retries=0, constrained_decoding="never")

    def open_engine(self) -> "TransformersEngine":
        return TransformersEngine(self.flags, self.folder, self.window)

    def describe_memory(self) -> list[str]:
        return describe_weights(self.folder, 4 if self.flags.dtype == "float32" else 2)


def beam_settings(trained: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of beam search for a generator; `trained` has the settings of its training."""
    return {"num_beams": NUM_BEAMS, "fusion": trained.get("fusion") or "none"}


def refuse_flags(args: Namespace) -> None:
    """Raise UserError for flags that beam search in a single process of transformers does not support."""
    for flag, has_it, why in (
        ("--choose", args.choose is not None, "options cannot be scored"),
        ("--num_generated_outputs", args.num_generated_outputs > 1, "beam search writes one answer"),
        ("--tensor_parallel_size", args.tensor_parallel_size > 1, "it runs on one GPU"),
        ("--data_parallel_size", args.data_parallel_size > 1, "it runs on one GPU; use --num_shards"),
        *((f"--{name}", vars(args)[name] not in (None, {}), "beam search does not sample, and it has no chat template")
          for name in FURTHER),
        ("--reasoning_parser", args.reasoning_parser is not None, "it writes no thoughts"),
    ):  # fmt: skip
        if has_it:
            raise UserError(f"{flag}: {args.model_addr} is an encoder-decoder: {why}\n  remove {flag}")


class TransformersEngine:
    """Runs an encoder-decoder in this process. Waiting requests are answered in batches of similar length."""

    def __init__(self, args: Namespace, model: ModelFolder, window: TextWindow):
        announce(f"loading {model.addr}")
        import torch

        from utils.generation.beams import room_of
        from utils.models.base_model import device_name, load_encoder_decoder, quiet_libraries
        from utils.models.devices import check_devices, settle_dtype

        quiet_libraries()
        check_devices()
        check_before_fetching(model)
        dtype = settle_dtype(args.dtype)
        dtype = dtype if dtype == "auto" else getattr(torch, dtype)
        self._model = load_encoder_decoder(str(model.fetch()), {"trust_remote_code": False}, dtype).eval()
        if torch.cuda.is_available():
            self._model.cuda()
        self._room = room_of(self._model, NUM_BEAMS, window.max_tokens)
        self.concurrency = WAITING * self._room.prompts
        self._tokenizer = window.chat.tokenizer
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
            await asyncio.sleep(0)  # lets answered requests be stored and new ones be made
            if not self._waiting:
                return
            waiting = self._waiting
            try:
                numbers = next(batches([prompt for prompt, *_ in waiting], self._room))
                batch = [waiting[number] for number in numbers]
                self._waiting = [request for number, request in enumerate(waiting) if number not in set(numbers)]
                completions = await asyncio.to_thread(self._write, batch)
            except Exception as error:  # end all requests; otherwise, the run would wait for them forever
                for *_, answer in [*waiting, *self._waiting]:
                    if not answer.done():
                        answer.set_exception(error)
                self._waiting = []
                return
            for (*_, answer), completion in zip(batch, completions, strict=True):
                if not answer.done():  # a run that ends early has cancelled it
                    answer.set_result(completion)

    def _write(self, batch: list[tuple[Any, int, asyncio.Future]]) -> list[Completion]:
        from utils.generation.beams import write

        prompts = [prompt for prompt, *_ in batch]
        what = f"{count_noun(len(prompts), 'prompt')} with {NUM_BEAMS} beams, on {self.device}"
        with fitting(what, "lower --max_model_len"):
            texts = write(self._model, self._tokenizer, prompts, NUM_BEAMS, batch[0][1], lambda: self._is_closed)
        return [
            Completion(
                text=self._tokenizer.decode(ids, skip_special_tokens=True),
                finish_reason="length" if is_cut else "stop",
                prompt_tokens=len(prompt),
                cached_tokens=0,
                completion_tokens=len(ids),
            )
            for prompt, (ids, is_cut) in zip(prompts, texts, strict=True)
        ]

    async def close(self) -> None:
        self._is_closed = True  # a running batch ends at its next token
