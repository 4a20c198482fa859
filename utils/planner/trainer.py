"""The planner's training loop: TRL's SFTTrainer on LoRA, with its own evaluation and files a run can go on from.

Imported by train_planner.py once everything is checked, for it loads torch, transformers, peft and trl.
"""

import errno
import logging
import os
import random
import re
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from accelerate.data_loader import SeedableRandomSampler
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from peft import LoraConfig
from safetensors import SafetensorError
from torch.utils.data import DataLoader, Sampler
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PrinterCallback,
)
from transformers.utils import is_flash_attn_2_available, is_flash_attn_greater_or_equal
from trl import SFTConfig, SFTTrainer

from utils.cli import UserError, is_first_process
from utils.cli.progress import announce
from utils.files.writing import naming
from utils.generation.chat import LocalChat
from utils.parsing import Parsed
from utils.parsing.plans import NO_LOSS, coverage, plan_parser, share_words
from utils.planner.checkpoints import is_unevaluated
from utils.planner.recorder import Recorder
from utils.planner.stopping import Stopper

if TYPE_CHECKING:
    from train_planner import Example
    from utils.planner.checkpoints import Run

PLAN_TOKENS = 256  # a plan may have in an evaluation: three times what one takes, for an untrained model never ends
MAX_GRADIENT_NORM = 1.0  # paper, appendix E


def train(
    args: Namespace,
    source: dict[str, Any],
    chat: LocalChat,
    examples: "list[Example]",
    validation: "list[Example]",
    manifest: dict[str, Any],
    run: "Run",
    lead_in: str | None,
) -> dict[str, Any]:
    """Train from the base model, or on from the run's checkpoint, up to --max_steps.

    Args:
        args: train_planner.py's flags.
        source: revision and cache of the base model.
        examples, validation: token ids of prompts and targets; without validation nothing is evaluated.
        manifest: what goes beside every adapter.
        run: where the checkpoints go, and the one to go on from.
        lead_in: what the targets begin with (utils/parsing/plans).

    Returns:
        steps, best_step, best_loss (None where nothing was evaluated).
    """
    quiet_libraries()
    bf16 = has_bf16()
    attention = choose_attention(args.attn_implementation, bf16, args.model_addr, source)
    model = load_base(args.model_addr, source, torch.bfloat16 if bf16 else torch.float32, attention)
    stopper = Stopper()
    recorder = Recorder(run, manifest, stopper)
    trainer = PlannerTrainer(
        model=model,
        args=make_config(args, bf16, bool(validation), run.checkpoint is not None and is_unevaluated(run.checkpoint)),
        train_dataset=Dataset.from_list([example.row for example in examples]),
        eval_dataset=Dataset.from_list([example.row for example in validation]) if validation else None,
        processing_class=chat.tokenizer,
        peft_config=make_lora_config(args, model),
        recorder=recorder,
        chat=chat,
        lengths=[example.length for example in examples],
        validation=validation,
        num_generate=args.eval_generate,
        max_seq_length=args.max_seq_length,
        parse=plan_parser(lead_in),
    )
    trainer.remove_callback(PrinterCallback)
    recorder.manifest["device"] = device_name(trainer.accelerator.num_processes)
    recorder.manifest["attention"], recorder.manifest["bf16"] = attention, bf16
    if trainer.is_world_process_zero():
        padding = trainer.padding_share()
        trainable, total = trainer.model.get_nb_trainable_parameters()
        modules = ", ".join(sorted({name.split(".")[-1] for name in trainer.model.active_peft_config.target_modules}))
        print(
            f"{recorder.manifest['device']}; {'bf16' if bf16 else 'fp32'}; attention: {attention}; "
            f"LoRA on {modules}: {trainable:,} of {total:,} parameters\n"
            f"{padding:.1%} of the tokens are padding"
            + (f"\ngoing on from {run.checkpoint}" if run.checkpoint else ""),
            flush=True,
        )
    with stopper:
        trainer.train(resume_from_checkpoint=str(run.checkpoint) if run.checkpoint else None)
    return {"steps": trainer.state.global_step, **recorder.best(trainer.state)}


def quiet_libraries() -> None:
    """No bars of theirs; messages only from --log_level on."""
    level = logging.getLogger().level
    transformers.logging.set_verbosity(logging.ERROR if level >= logging.WARNING else level)
    transformers.logging.disable_progress_bar()
    disable_progress_bar()
    if level >= logging.WARNING:
        logging.getLogger("accelerate").setLevel(logging.ERROR)
        logging.getLogger("torch").setLevel(logging.ERROR)


def has_bf16() -> bool:
    """The device computes in bfloat16; an emulation would be slower than float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def device_name(count: int) -> str:
    if torch.cuda.is_available():
        return f"{count} x {torch.cuda.get_device_name()}"
    return f"CPU, {len(os.sched_getaffinity(0))} cores" + (f", {count} processes" if count > 1 else "")


def choose_attention(wanted: str, bf16: bool, model_addr: str, source: dict[str, Any]) -> str:
    """The attention to load the model with, in bfloat16 or float32; FlashAttention 2 computes in 16 bits only.

    "auto" takes none that leaves out a part of the model, and says where it has to take eager for that.

    Raises:
        UserError: FlashAttention 2 is asked for, and not there or not for this type; or what is asked for would leave
            out a part of the model.
    """
    available = is_flash_attn_2_available()
    if wanted == "flash_attention_2" and not available:
        raise UserError("--attn_implementation flash_attention_2: flash-attn is not installed, or there is no GPU")
    if wanted == "flash_attention_2" and not bf16:
        raise UserError("--attn_implementation flash_attention_2: takes no fp32, and this device has no bf16")
    unfit = unfit_attention(AutoConfig.from_pretrained(model_addr, trust_remote_code=False, **source))
    if wanted in unfit:
        raise UserError(f"--attn_implementation {wanted}: {model_addr}: {unfit[wanted]}; give auto")
    if wanted != "auto":
        return wanted
    if available and bf16 and "flash_attention_2" not in unfit:
        return "flash_attention_2"
    if "sdpa" not in unfit:
        return "sdpa"
    if is_first_process():
        print(f"note: {model_addr}: {unfit['sdpa']}; attention is eager", file=sys.stderr, flush=True)
    return "eager"


def unfit_attention(config: Any) -> dict[str, str]:
    """The implementations that would leave out a part of a model, and why; eager leaves out none."""
    unfit = {}
    if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None:
        # transformers drops it without a word where the kernel has no such argument; vLLM applies it.
        unfit["sdpa"] = "sdpa would leave out its attn_logit_softcapping"
        if not is_flash_attn_greater_or_equal("2.6.0"):
            unfit["flash_attention_2"] = "FlashAttention before 2.6 would leave out its attn_logit_softcapping"
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:  # no language model; load_base says so
        return unfit
    if not model_class._supports_sdpa:  # attention sinks, say
        unfit["sdpa"] = f"{model_class.__name__} does not support sdpa"
    known = getattr(model_class, "_compatible_flash_implementations", None) or ["flash_attention_2"]
    if not model_class._supports_flash_attn or "flash_attention_2" not in known:
        # transformers would take another FlashAttention instead, fetched from the hub as code.
        unfit["flash_attention_2"] = f"{model_class.__name__} does not support FlashAttention 2"
    return unfit


def load_base(model_addr: str, source: dict[str, Any], dtype: torch.dtype, attention: str) -> Any:
    try:
        return AutoModelForCausalLM.from_pretrained(
            model_addr,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=False,
            **source,
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{model_addr}: cannot be loaded: {str(error).strip().splitlines()[0]}") from error


def make_lora_config(args: Namespace, model: Any) -> LoraConfig:
    """LoRA as in the paper's appendix E: rank 16, alpha 16, dropout 0.05, no biases."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    modules, model_type = args.lora_target_modules, model.config.model_type
    if modules is None and model_type not in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
        raise UserError(f"PEFT has no default modules for {model_type}: name them, --lora_target_modules q_proj v_proj")
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if modules and modules != ["all-linear"] and (unknown := sorted(set(modules) - names)):
        raise UserError(f"--lora_target_modules: {args.model_addr} has no module {', '.join(unknown)}")
    return LoraConfig(
        r=args.lora_rank,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules="all-linear" if modules == ["all-linear"] else modules,
        bias="none",
        task_type="CAUSAL_LM",
    )


def make_config(args: Namespace, bf16: bool, evaluate: bool, evaluate_first: bool) -> SFTConfig:
    return SFTConfig(
        output_dir=args.output_dir,
        per_device_train_batch_size=args.per_device_train_batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        gradient_checkpointing=args.gradient_checkpointing,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        optim="adamw_torch",
        lr_scheduler_type="linear",
        warmup_steps=args.warmup_steps,
        max_grad_norm=MAX_GRADIENT_NORM,
        max_steps=args.max_steps,
        bf16=bf16,
        use_cpu=not torch.cuda.is_available(),
        seed=args.seed,
        data_seed=args.seed,
        save_steps=args.save_steps,
        eval_strategy="steps" if evaluate else "no",
        eval_steps=args.eval_steps if evaluate else None,
        eval_on_start=evaluate and evaluate_first,
        ddp_find_unused_parameters=False,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        # The rows are tokenized and fit --max_seq_length, with the labels set.
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )


class ByLengthInSteps(Sampler[int]):
    """A random order in which the sequences of one step stand by length, the longest first.

    So its batches need little padding, and those that several processes compute at the same time are of similar length:
    accelerate deals them out in turn, and after each batch all wait for the slowest. The step learns from the same
    sequences whatever its batches are, but for those that fill up an epoch.

    Args:
        at_once: an epoch is filled up to a multiple of it with the first sequences of its random order. Accelerate does
            so for several processes, but would take the first of this order, the longest of its first step.
    """

    def __init__(self, lengths: list[int], step_size: int, seed: int, at_once: int = 1):
        self._lengths, self._step_size, self._at_once = lengths, step_size, at_once
        self._random = SeedableRandomSampler(lengths, data_seed=seed)  # as accelerate would make it

    def __len__(self) -> int:
        return -(-len(self._lengths) // self._at_once) * self._at_once

    def __iter__(self) -> Iterator[int]:
        order = list(self._random)
        order += list(islice(cycle(order), len(self) - len(order)))
        for start in range(0, len(order), self._step_size):
            yield from sorted(order[start : start + self._step_size], key=lambda index: -self._lengths[index])

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate before each epoch: it has an order of its own."""
        self._random.set_epoch(epoch)


class PlannerTrainer(SFTTrainer):
    """SFTTrainer with the planner's evaluation: loss over the target tokens, and aspect recall of generated plans.

    It saves before it evaluates, and on a signal, through `recorder.stopper`: a checkpoint of the last finished step.
    """

    def __init__(
        self,
        *,
        recorder: Recorder,
        chat: LocalChat,
        lengths: list[int],
        validation: "list[Example]",
        num_generate: int,
        max_seq_length: int,
        parse: Callable[[str, bool], Parsed],
        **kwargs: Any,
    ):
        super().__init__(callbacks=[recorder], **kwargs)
        self._recorder = recorder
        self._stopper = recorder.stopper
        self._chat = chat
        self._lengths = lengths
        self._validation = validation
        self._sample = random.Random(self.args.seed).sample(validation, min(num_generate, len(validation)))
        self._max_seq_length = max_seq_length
        self._parse = parse

    def get_train_dataloader(self) -> DataLoader:
        loader = super().get_train_dataloader()
        if self.args.per_device_train_batch_size * self.accelerator.num_processes > 1:  # else nothing pads or waits
            loader.set_sampler(self._steps_by_length())  # so it is found by a run that goes on within an epoch, too
        return loader

    def _steps_by_length(self) -> "ByLengthInSteps":
        num_processes = self.accelerator.num_processes
        at_once = self.args.per_device_train_batch_size * num_processes
        step_size = at_once * self.args.gradient_accumulation_steps
        # The last batch of a single process is smaller instead.
        return ByLengthInSteps(self._lengths, step_size, self.args.seed, at_once if num_processes > 1 else 1)

    def padding_share(self) -> float:
        """Of the tokens in the first epoch's batches, those that are padding."""
        lengths = [self._lengths[index] for index in self._steps_by_length()]
        size = self.args.per_device_train_batch_size
        batches = [lengths[start : start + size] for start in range(0, len(lengths), size)]
        return 1 - sum(lengths) / sum(len(batch) * max(batch) for batch in batches)

    def _run_epoch(self, **kwargs: Any) -> None:
        if self.state.global_step < self.state.max_steps:  # else the run only goes on to the last evaluation
            super()._run_epoch(**kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self._stop_if_asked()
        return loss

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._random_states = random_states()  # what a run that goes on from this step has to begin with
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if self.state.global_step < self.state.max_steps:
            self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        """Leave where a signal has come to any process, with a checkpoint of the last finished step.

        All processes ask at the same places, and leave at the same one: saving takes all of them.
        """
        asked = self._stopper.asked
        if self.accelerator.num_processes > 1:
            asked = self.accelerator.reduce(torch.tensor(int(asked), device=self.accelerator.device), "sum").item() > 0
        if not asked:
            return
        if self.state.global_step > self._stopper.saved:
            self._save_finished_step()
            self.accelerator.wait_for_everyone()  # for the first, which calls it whole: the launcher ends what is left
        self._stopper.leave()

    def _save_finished_step(self) -> None:
        """A checkpoint of the last finished step, while the next is under way or an evaluation is about to begin."""
        self.current_flos = 0  # those of the step under way
        set_random_states(self._random_states)
        self._save_checkpoint(self.model, None)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        started = time.monotonic()
        if self.state.global_step > self._stopper.saved:  # first, so that a kill in the minutes to come costs nothing
            self._save_finished_step()
        self._stop_if_asked()
        counts = f"questions: {len(self._validation)}, plans: {len(self._sample)}"
        announce(f"step {self.state.global_step}: evaluating ({counts})")
        self.model.eval()
        with self._stopper.at_once():
            metrics = {"eval_loss": self._target_loss(), **self._plan_figures()}
        metrics["eval_seconds"] = round(time.monotonic() - started, 1)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A batch's share of the step's mean cross-entropy (nats) over the target tokens of all its sequences.

        On a GPU it is SFTTrainer's own, which elsewhere sends every position through the vocabulary projection.
        """
        if self.accelerator.device.type == "cuda" or self.aux_loss_enabled or num_items_in_batch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss, num_right = target_loss(model, **inputs)
        num_targets = (inputs["labels"][:, 1:] != NO_LOSS).sum()
        num_right, num_targets = self.accelerator.reduce(torch.stack([num_right, num_targets]), "sum").tolist()
        self._metrics["train"]["mean_token_accuracy"].append(num_right / num_targets)  # SFTTrainer logs their mean
        # The step's targets are those of all processes, over which the gradients are averaged.
        return loss / num_items_in_batch * self.accelerator.num_processes

    def _mine(self, examples: "list[Example]") -> "list[Example]":
        """This process's share: by length, so that all are done at about the same time."""
        index, num_processes = self.accelerator.process_index, self.accelerator.num_processes
        if num_processes > 1:
            examples = sorted(examples, key=lambda example: -example.length)
        return examples[index::num_processes]

    @torch.no_grad()
    def _target_loss(self) -> float:
        """Mean cross-entropy (nats) over all target tokens of the validation set."""
        total = torch.zeros(2, dtype=torch.float64, device=self.accelerator.device)
        for example in self._mine(self._validation):
            row = {name: torch.tensor([ids], device=self.accelerator.device) for name, ids in example.row.items()}
            with self.accelerator.autocast():
                loss, _ = target_loss(self.model, **row)
            total += torch.tensor([loss, len(example.target)], device=total.device)
        total = self.accelerator.reduce(total, "sum")
        return (total[0] / total[1]).item()

    def _plan_figures(self) -> dict[str, float]:
        """Aspect recall of greedy plans for the sample: mean share of gold titles that a planned one matches.

        They match by shared words (utils/plans.share_words).
        """
        if not self._sample:
            return {}
        total = torch.zeros(2, dtype=torch.float64, device=self.accelerator.device)
        for example in self._mine(self._sample):
            planned = self._parse(*self._generate(example)).value
            recall = coverage(example.aspects, planned or [], share_words)
            total += torch.tensor([recall, planned is None], device=total.device)
        recall, without = self.accelerator.reduce(total, "sum").tolist()
        return {
            "eval_aspect_recall": recall / len(self._sample),
            "eval_plans": len(self._sample),
            "eval_plans_without_an_aspect": int(without),
        }

    @torch.no_grad()
    def _generate(self, example: "Example") -> tuple[str, bool]:
        """The greedy plan for a question, and whether it was cut."""
        prompt = torch.tensor([list(example.prompt)], device=self.accelerator.device)
        config = GenerationConfig(
            do_sample=False,
            repetition_penalty=1.0,  # some models' own settings have another; vLLM is asked without
            max_new_tokens=min(PLAN_TOKENS, self._max_seq_length - len(example.prompt)),
            eos_token_id=self._chat.end_of_turn,
            pad_token_id=self._chat.tokenizer.pad_token_id,
            use_cache=True,
        )
        with self.accelerator.autocast():
            output = self.model.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), generation_config=config
            )
        plan = output[0, prompt.shape[1] :]
        is_cut = plan[-1] != self._chat.end_of_turn
        return self._chat.tokenizer.decode(plan, skip_special_tokens=True), bool(is_cut)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        self._recorder.interim = not self.control.should_save
        announce(f"step {self.state.global_step}: saving {checkpoint}")
        with writing(checkpoint):
            super()._save_checkpoint(model, trial)
        if self.args.should_save:
            with suppress(OSError):  # safetensors writes files that only their owner can read; not all disks have modes
                shutil.copymode(checkpoint / "trainer_state.json", checkpoint / "adapter_model.safetensors")
        self.accelerator.wait_for_everyone()  # each process writes a part; Recorder.on_save then calls it whole

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None of the library's, which knows neither base model nor data: utils/planner/card.py writes it."""


def random_states() -> tuple[Any, ...]:
    """Those of the generators that a training draws from, on this process's device."""
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_gpu


def set_random_states(states: tuple[Any, ...]) -> None:
    of_python, of_numpy, of_torch, on_gpu = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
    if on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu)


def target_loss(model: Any, labels: torch.Tensor, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy (nats), summed over the target tokens of a batch, and how many of them are the likeliest.

    Only where a sequence of the batch has a target does the model compute logits: of 8192 tokens and a vocabulary of
    152 thousand they would take 5 GB.

    Args:
        labels: (B, T), `NO_LOSS` where there is no target.
        inputs: input_ids, and attention_mask where there is padding (both (B, T)).
    """
    labels = labels[:, 1:]  # each position predicts the next token
    positions = (labels != NO_LOSS).any(0).nonzero().flatten()  # (P,)
    logits = model(**inputs, logits_to_keep=positions, use_cache=False).logits.float()  # (B, P, vocabulary)
    targets = labels[:, positions]
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=NO_LOSS, reduction="sum"
    )
    return loss, (logits.argmax(-1) == targets).sum()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What torch and safetensors raise where they cannot write is an OSError here, and names the folder."""
    try:
        with naming(folder):
            yield
    except SafetensorError as error:
        if (found := re.search(r"os error (\d+)", str(error))) is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(folder)) from None
    except RuntimeError as error:
        if "inline_container" not in str(error) and "PytorchStreamWriter" not in str(error):
            raise
        problem = "No space left on device, or a limit on the size of a file"  # torch does not say which
        raise OSError(errno.ENOSPC, problem, str(folder)) from None
