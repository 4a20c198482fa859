"""Embed texts with a BERT-like encoder, such as Contriever (Izacard et al. 2022) or BGE-M3."""

import copy
import logging
import math
import os
import pickle
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from retrieval import FULL_LENGTH
from retrieval.pooling import MEAN, Pooling
from utils.base.errors import UserError, count_noun
from utils.base.progress import Progress
from utils.models.devices import fitting, has_gpu
from utils.models.loading import MODEL_FILES, TOKENIZER_FILES, check_special_tokens, check_tokens, loading
from utils.models.model_folder import ModelFolder

GPU_BATCH_SIZE = 64
# On a CPU, larger batches are slower, because buffers outgrow the caches and padding grows: on two cores, BERT-base
# took 10.5 s with a batch size of 4, 12.7 s with 8 and 15.9 s with 16. Smaller batches are hardly faster, and slower if
# other work shares the cores.
CPU_BATCH_SIZE_PER_THREAD = 2
FULL_ENOUGH = 1 / 4  # once this share of the budget is used, a new batch is cheaper than more padding
ALIKE = 0.95  # texts of at least this share of the longest text's length need negligible padding
WINDOW = 4096  # texts to tokenize and sort at a time, while the previous window is embedded; limits memory
QUEUED = 4  # waiting batches per model, so that no model waits for other models or for the next window
UNUSUAL = "text 漢 \u0378"  # tokenizing it fails if the vocabulary has no token for unknown characters
TOKENIZED_AT_ONCE = 512  # texts; a tokenizer needs over a hundred bytes per token, even for tokens that it cuts

T = TypeVar("T")
Batch = tuple[list[int], Any, Any]  # for B texts: row numbers, padded token ids (B, T), and lengths in tokens (B,)


@dataclass(frozen=True)
class Encoder:
    """A loaded model with its tokenizer."""

    model: Any
    tokenizer: Any
    replicas: tuple[Any, ...] = ()  # copies of the model on other GPUs, which share the batches
    pooling: Pooling = MEAN

    @property
    def device(self) -> str:
        return ", ".join(str(model.device) for model in (self.model, *self.replicas))


def load_encoder(
    model_name: str,
    cache_dir: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    pooling: Pooling = MEAN,
) -> Encoder:
    """Load a BERT-like model by hub name or folder. Call `ModelFolder.checked` first.

    Args:
        device: "cuda" for all visible GPUs, "cuda:0" for one, "cpu", or "auto" for all GPUs if there are any.
        dtype: "float32" or "bfloat16", for the weights and all activations.

    Raises:
        UserError: `device` is "cuda", but torch finds no GPU; the model cannot be loaded, or reads fewer than
            `pooling.max_length` tokens; or a GPU has too little free memory.
    """
    # transformers reads a pytorch_model.bin without running pickled code (torch.load with weights_only=True). But it
    # would also start a background thread that asks the hub to convert the model.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    import torch
    import transformers

    if logging.getLogger().level >= logging.WARNING:
        transformers.logging.set_verbosity_error()  # no warning about a missing pooler, which is not used here
    if not sys.stderr.isatty():
        transformers.logging.disable_progress_bar()
    devices = pick_devices(device)
    source = ModelFolder(model_name, cache_dir).source
    # In bfloat16 on a CPU, torch's fused attention is half as fast as eager attention.
    attention = "eager" if (devices, dtype) == (["cpu"], "bfloat16") else None
    settings = {"dtype": getattr(torch, dtype), "attn_implementation": attention, "output_loading_info": True}
    tokenizer, _ = open_tokenizer(model_name, cache_dir, pooling)
    with loading(model_name, *MODEL_FILES):
        try:
            model, report = transformers.AutoModel.from_pretrained(model_name, **settings, **source)
        except pickle.UnpicklingError:
            raise UserError(
                f"{model_name}: its pickled weights hold more than tensors and may run code; "
                "use a model with safetensors"
            ) from None
    if missing := sorted(name for name in report["missing_keys"] if "pooler" not in name):
        raise UserError(f"{model_name}: its weights lack {missing[0]}; use a complete encoder")  # they would be random
    model.eval()
    # An encoder fits on any GPU that is free.
    with fitting(f"{model_name} on {', '.join(devices)}", "free the GPU, or exclude it with CUDA_VISIBLE_DEVICES"):
        replicas = tuple(copy.deepcopy(model).to(device) for device in devices[1:])
        return Encoder(model.to(devices[0]), tokenizer, replicas, pooling)


def open_tokenizer(model_name: str, cache_dir: str | None, pooling: Pooling) -> tuple[Any, int | None]:
    """Return the encoder's tokenizer, and the size of the model's vocabulary (None if its config does not say).

    UserError if loading fails, the model reads fewer than `pooling.max_length` tokens, or the tokenizer has no fast
    version.
    """
    import tokenizers
    import transformers

    max_length = pooling.max_length
    source = ModelFolder(model_name, cache_dir).source
    with loading(model_name, "config.json"):
        config = transformers.AutoConfig.from_pretrained(model_name, **source)
        size = getattr(config, "vocab_size", None)
        limit = most_tokens(config) or max_length
    if max_length > limit:
        raise UserError(f"{model_name}: reads at most {limit} tokens; use --max_length {limit} or less")
    with loading(model_name, *TOKENIZER_FILES, "vocab.txt"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_name, **source)
        ids = tokenizer(UNUSUAL, truncation=True, max_length=max_length)["input_ids"]
        check_special_tokens(tokenizer, config, "pad_token")
        check_tokens(ids, tokenizer, size)
    if not tokenizer.is_fast:  # slow tokenizers do not report what they cut
        what = f"its tokenizer ({type(tokenizer).__name__}) has no fast version, and slow ones are not supported"
        raise UserError(f"{model_name}: {what}\n  use an encoder with a tokenizer.json")
    if pooling.lower_case:
        normalizers = [tokenizers.normalizers.Lowercase(), tokenizer.backend_tokenizer.normalizer]
        tokenizer.backend_tokenizer.normalizer = tokenizers.normalizers.Sequence([*filter(None, normalizers)])
    return tokenizer, size


def most_tokens(config: Any) -> int | None:
    """Return the maximum number of tokens that a model reads; None if its config sets no limit.

    Models like RoBERTa (XLM-R, MPNet) number positions from the padding token's id + 1, so BGE-M3, with 8194 positions,
    reads 8192 tokens.
    """
    import torch
    import transformers

    limit = getattr(config, "max_position_embeddings", None)
    if limit is None:
        return None
    with torch.device("meta"):  # without weights
        layers = dict(transformers.AutoModel.from_config(config).named_modules())
    padding = getattr(layers.get("embeddings.position_embeddings"), "padding_idx", None)
    return limit if padding is None else limit - padding - 1


def pick_devices(device: str) -> list[str]:
    """Return the devices for the model and its replicas: all GPUs, unless `device` is "cpu" or a GPU ("cuda:0").

    UserError if `device` is "cuda" and there is no GPU, or if a GPU is unusable.
    """
    import torch

    if device.startswith("cuda:") and has_gpu():
        return [device]
    if device != "cpu" and has_gpu():
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device == "cuda":
        raise UserError("--device cuda: torch finds no GPU on this machine")
    return ["cpu"]


def embed_texts(
    encoder: Encoder, texts: Sequence[str], batch_size: int | None = None, progress: Progress | None = None
) -> tuple[np.ndarray, int]:
    """Embed every text by pooling its last hidden states.

    Args:
        batch_size: maximum number of 512-token texts per batch; shorter texts make larger batches. The default is 64 on
            a GPU, and 2 per thread on a CPU, where it is also the maximum. The batch size changes embeddings only by
            rounding.

    Returns:
        The embeddings in the order of `texts`, float32 (len(texts), D), and how many texts were cut.

    Raises:
        UserError: a batch does not fit in memory.
    """
    import torch

    budget, pad = _token_budget(encoder.model.device.type, batch_size), encoder.tokenizer.pad_token_id
    embeddings = np.empty((len(texts), encoder.model.config.hidden_size), dtype=np.float32)
    starts = range(0, len(texts), WINDOW)
    windows = (_tokenize(encoder, texts[start : start + WINDOW]) for start in starts)
    num_cut = 0

    def batches() -> Iterator[Batch]:
        nonlocal num_cut
        for start, (token_ids, cut) in zip(starts, _one_ahead(windows), strict=True):
            num_cut += cut
            for rows in batches_by_length([len(ids) for ids in token_ids], budget):
                ids = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(token_ids[row]) for row in rows], True, pad)
                yield [start + row for row in rows], ids, torch.tensor([len(token_ids[row]) for row in rows])

    for rows, pooled in _embed_batches(encoder, _one_ahead(batches())):
        embeddings[rows] = pooled
        if progress is not None:
            progress.update(len(rows))
    return embeddings, num_cut


def _one_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator; a thread computes the next item while the current one is in use."""
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, items, None)
        while (item := pending.result()) is not None:
            pending = thread.submit(next, items, None)
            yield item


def _token_budget(device_type: str, batch_size: int | None) -> int:
    """Return the number of padded tokens that a batch may hold."""
    import torch

    if device_type == "cpu":
        most = CPU_BATCH_SIZE_PER_THREAD * torch.get_num_threads()
        return min(batch_size or most, most) * FULL_LENGTH
    return (batch_size or GPU_BATCH_SIZE) * FULL_LENGTH


def batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield batches of text indices, longest texts first, within `budget` padded tokens and with little padding.

    Because the longest texts come first, a batch size that is too large for the memory fails in the first batch. A text
    longer than the budget gets its own batch. Once a quarter of the budget is used, a batch ends where the texts get
    shorter.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        longest = lengths[order[start]]
        least = math.ceil(FULL_ENOUGH * budget / longest)
        batch = order[start : start + max(1, budget // longest)]
        alike = sum(lengths[index] >= ALIKE * longest for index in batch)
        batch = batch[: max(least, alike)]
        yield batch
        start += len(batch)


def _tokenize(encoder: Encoder, texts: Sequence[str]) -> tuple[list[np.ndarray], int]:
    """Return the token ids of every text, int64 (T,), and how many texts were cut at the encoder's length."""
    token_ids, num_cut, size = [], 0, getattr(encoder.model.config, "vocab_size", None)
    for start in range(0, len(texts), TOKENIZED_AT_ONCE):
        encoded = encoder.tokenizer(
            list(texts[start : start + TOKENIZED_AT_ONCE]),
            truncation=True,
            max_length=encoder.pooling.max_length,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        num_cut += sum(bool(encoding.overflowing) for encoding in encoded.encodings)
        for ids in encoded["input_ids"]:
            check_tokens(ids, encoder.tokenizer, size)  # an id outside the vocabulary would crash the GPU
        token_ids += [np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]]
    return token_ids, num_cut


def _embed_batches(encoder: Encoder, batches: Iterator[Batch]) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield each batch's rows and embeddings in order; each batch goes to a model or replica that is idle."""
    pooling = encoder.pooling
    if not encoder.replicas:  # in this thread, so that a signal stops the work at once
        yield from ((rows, _embed_batch(encoder.model, pooling, *batch)) for rows, *batch in batches)
        return
    idle: SimpleQueue[Any] = SimpleQueue()
    for model in (encoder.model, *encoder.replicas):
        idle.put(model)

    def embed(batch: Batch) -> tuple[list[int], np.ndarray]:
        model = idle.get()
        try:
            return batch[0], _embed_batch(model, pooling, *batch[1:])
        finally:
            idle.put(model)

    threads = ThreadPoolExecutor(len(encoder.replicas) + 1)
    pending: deque[Future[tuple[list[int], np.ndarray]]] = deque()
    try:
        for batch in batches:
            pending.append(threads.submit(embed, batch))
            if len(pending) > QUEUED * (len(encoder.replicas) + 1):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)


def _embed_batch(model: Any, pooling: Pooling, input_ids: Any, lengths: Any) -> np.ndarray:
    """Return the embeddings (B, D) of B texts' token ids; UserError with a remedy if they do not fit in memory."""
    import torch

    count, longest = input_ids.shape
    size = count * longest / FULL_LENGTH  # in units of --batch_size
    remedy = "use another --device, --dtype bfloat16 or a smaller --max_length"
    if count > 1 and size > 1:
        remedy = f"lower --batch_size to {max(1, int(size / 2))}; finished rankings are kept"
    what = f"{count_noun(count, 'text')} of up to {longest} tokens at a time, on {model.device}"
    with fitting(what, remedy), torch.inference_mode():  # inference_mode applies to the current thread only
        input_ids, lengths = input_ids.to(model.device), lengths.to(model.device)
        mask = torch.arange(input_ids.shape[1], device=model.device) < lengths[:, None]
        hidden = model(input_ids=input_ids, attention_mask=mask.long()).last_hidden_state.float()  # (B, T, D)
        if pooling.mode == "cls":
            pooled = hidden[:, 0]
        elif pooling.mode == "lasttoken":
            last = hidden[torch.arange(count, device=model.device), lengths - 1]  # padding is on the right
            pooled = last * (lengths > 0)[:, None]  # a text without tokens gets zeros, which the caller refuses
        else:
            pooled = torch.einsum("btd,bt->bd", hidden, mask.float()) / lengths[:, None]
        if pooling.normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=1)
        return pooled.cpu().numpy()
