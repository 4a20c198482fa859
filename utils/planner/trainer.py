"""The planner's training loop: TRL's SFTTrainer on LoRA, with its own evaluation and files a run can go on from.

Imported by train_planner.py once everything is checked, for it loads torch, transformers, peft and trl.
"""

import errno
import os
import random
import re
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler
from datasets import Dataset
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from transformers import GenerationConfig, PrinterCallback
from trl import SFTConfig, SFTTrainer

from utils.cli.progress import announce
from utils.files.writing import naming
from utils.generation.chat import LocalChat
from utils.parsing import Parsed
from utils.parsing.plans import coverage, plan_parser, share_words
from utils.planner import base_model
from utils.planner.checkpoints import Run
from utils.planner.examples import NO_LOSS, Example
from utils.planner.recorder import Recorder

PLAN_TOKENS = 256  # a plan may have in an evaluation: three times what one takes, for an untrained model never ends
MAX_GRADIENT_NORM = 1.0  # paper, appendix E


def train(
    args: Namespace,
    source: dict[str, Any],
    chat: LocalChat,
    examples: list[Example],
    validation: list[Example],
    manifest: dict[str, Any],
    run: Run,
    lead_in: str | None,
) -> dict[str, Any]:
    """Train from the base model, or on from the run's checkpoint, up to --max_steps.

    Args:
        source: of the base model, as `pinned_source` gives it.
        validation: where there is none, nothing is evaluated.
        manifest: what goes beside every adapter.
        lead_in: what the targets begin with (utils/parsing/plans).

    Returns:
        steps, best_step, best_loss (None where nothing was evaluated).
    """
    base_model.quiet_libraries()
    bf16 = base_model.has_bf16()
    attention = base_model.choose_attention(args.attn_implementation, bf16, args.model_addr, source)
    model = base_model.load_base(args.model_addr, source, torch.bfloat16 if bf16 else torch.float32, attention)
    recorder = Recorder(run, manifest)
    config = make_config(args, bf16, bool(validation), run.begins_with_evaluation)
    trainer = PlannerTrainer(args, model, config, chat, examples, validation, recorder, plan_parser(lead_in))
    manifest.update(device=base_model.device_name(trainer.accelerator.num_processes), attention=attention, bf16=bf16)
    if trainer.is_world_process_zero():
        trainable, total = trainer.model.get_nb_trainable_parameters()
        modules = ", ".join(sorted({name.split(".")[-1] for name in trainer.model.active_peft_config.target_modules}))
        print(
            f"{manifest['device']}; {'bf16' if bf16 else 'fp32'}; attention: {attention}; "
            f"LoRA on {modules}: {trainable:,} of {total:,} parameters\n"
            f"{trainer.padding_share():.1%} of the tokens are padding"
            + (f"\ngoing on from {run.checkpoint}" if run.checkpoint else ""),
            flush=True,
        )
    with recorder.stopper:
        trainer.train(resume_from_checkpoint=run.checkpoint and str(run.checkpoint))
    return {"steps": trainer.state.global_step, **recorder.best(trainer.state)}


def make_config(args: Namespace, bf16: bool, evaluates: bool, evaluates_first: bool) -> SFTConfig:
    same = (
        "output_dir per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing learning_rate "
        "weight_decay warmup_steps max_steps seed save_steps"
    )
    return SFTConfig(
        **{name: getattr(args, name) for name in same.split()},
        optim="adamw_torch",
        lr_scheduler_type="linear",
        max_grad_norm=MAX_GRADIENT_NORM,
        bf16=bf16,
        use_cpu=not torch.cuda.is_available(),
        data_seed=args.seed,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=args.eval_steps if evaluates else None,
        eval_on_start=evaluates and evaluates_first,
        ddp_find_unused_parameters=False,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        # The rows are tokenized and fit --max_seq_length, with the labels set.
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )


class ByLengthInSteps(SeedableRandomSampler):
    """A random order in which the sequences of one step stand by length, the longest first.

    So its batches need little padding, and those that several processes compute at the same time are of similar length:
    accelerate deals them out in turn, and after each batch all wait for the slowest. The step learns from the same
    sequences whatever its batches are.

    An epoch is filled up to a multiple of `at_once` with the first sequences of its random order. Accelerate does so
    for several processes, but would take the first of this order, the longest of its first step.
    """

    def __init__(self, lengths: list[int], step_size: int, seed: int, at_once: int = 1):
        super().__init__(lengths, data_seed=seed)  # as accelerate would make it
        self._lengths, self._step_size, self._at_once = lengths, step_size, at_once

    def __len__(self) -> int:
        return -(-len(self._lengths) // self._at_once) * self._at_once

    def __iter__(self) -> Iterator[int]:
        order = list(islice(cycle(list(super().__iter__())), len(self)))
        for start in range(0, len(order), self._step_size):
            yield from sorted(order[start : start + self._step_size], key=lambda index: -self._lengths[index])


class PlannerTrainer(SFTTrainer):
    """SFTTrainer with the planner's evaluation: loss over the target tokens, and aspect recall of generated plans.

    It saves before it evaluates, and on a signal, through `recorder.stopper`: a checkpoint of the last finished step.
    """

    def __init__(
        self,
        flags: Namespace,
        model: Any,
        config: SFTConfig,
        chat: LocalChat,
        examples: list[Example],
        validation: list[Example],
        recorder: Recorder,
        parse: Callable[[str, bool], Parsed],
    ):
        super().__init__(
            model,
            config,
            train_dataset=Dataset.from_list([example.row for example in examples]),
            eval_dataset=Dataset.from_list([example.row for example in validation]) if validation else None,
            processing_class=chat.tokenizer,
            callbacks=[recorder],
            peft_config=base_model.make_lora_config(flags, model),
        )
        self.remove_callback(PrinterCallback)
        self._chat, self._max_seq_length, self._parse = chat, flags.max_seq_length, parse
        self._stopper = recorder.stopper
        self._random = [torch, torch.cuda] if torch.cuda.is_available() else [torch]  # which dropout draws from
        self._lengths, self._validation = [example.length for example in examples], validation
        self._sample = random.Random(flags.seed).sample(validation, min(flags.eval_generate, len(validation)))

    def get_train_dataloader(self) -> DataLoader:
        loader = super().get_train_dataloader()
        if self.args.per_device_train_batch_size * self.accelerator.num_processes > 1:  # else nothing pads or waits
            loader.set_sampler(self._steps_by_length())  # so it is found by a run that goes on within an epoch, too
        return loader

    def _steps_by_length(self) -> ByLengthInSteps:
        at_once = self.args.per_device_train_batch_size * self.accelerator.num_processes
        step_size = at_once * self.args.gradient_accumulation_steps
        fill_up = at_once if self.accelerator.num_processes > 1 else 1  # else its last batch is smaller
        return ByLengthInSteps(self._lengths, step_size, self.args.seed, fill_up)

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
        # What a run that goes on from this step has to begin with.
        self._random_states = [source.get_rng_state() for source in self._random]
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
        for source, state in zip(self._random, self._random_states, strict=True):
            source.set_rng_state(state)
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
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
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

    @torch.no_grad()
    def _target_loss(self) -> float:
        """Mean cross-entropy (nats) over all target tokens of the validation set."""

        def figures(example: Example) -> tuple[torch.Tensor, int]:
            row = {name: torch.tensor([ids], device=self.accelerator.device) for name, ids in example.row.items()}
            with self.accelerator.autocast():
                return target_loss(self.model, **row)[0], len(example.target)

        loss, num_targets = self._sum_over(self._validation, figures)
        return loss / num_targets

    def _plan_figures(self) -> dict[str, float]:
        """Aspect recall of the sample's greedy plans: mean share of gold titles that share words with a planned one."""
        if not self._sample:
            return {}

        def figures(example: Example) -> tuple[float, bool]:
            planned = self._parse(*self._generate(example)).value
            return coverage(example.aspects, planned or [], share_words), planned is None

        recall, without = self._sum_over(self._sample, figures)
        return {
            "eval_aspect_recall": recall / len(self._sample),
            "eval_plans": len(self._sample),
            "eval_plans_without_an_aspect": int(without),
        }

    def _sum_over(self, examples: list[Example], figures: Callable[[Example], tuple[Any, Any]]) -> list[float]:
        """Two figures an example, summed over those of all processes."""
        total = torch.zeros(2, dtype=torch.float64, device=self.accelerator.device)
        for example in self._mine(examples):
            total += torch.tensor(figures(example), device=total.device)
        return self.accelerator.reduce(total, "sum").tolist()

    def _mine(self, examples: list[Example]) -> list[Example]:
        """This process's share: by length, so that all are done at about the same time."""
        if self.accelerator.num_processes > 1:
            examples = sorted(examples, key=lambda example: -example.length)
        return examples[self.accelerator.process_index :: self.accelerator.num_processes]

    def _generate(self, example: Example) -> tuple[str, bool]:
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
        announce(f"step {self.state.global_step}: saving {checkpoint}")
        with writing(checkpoint):
            super()._save_checkpoint(model, trial)
        if self.args.should_save:
            with suppress(OSError):  # safetensors writes files that only their owner can read; not all disks have modes
                shutil.copymode(checkpoint / "trainer_state.json", checkpoint / "adapter_model.safetensors")
        self.accelerator.wait_for_everyone()  # each process writes a part; Recorder.on_save then calls it whole

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None of the library's, which knows neither base model nor data: utils/planner/card.py writes it."""


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
    except (SafetensorError, RuntimeError) as error:
        if found := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(folder)) from None
        if "inline_container" not in str(error) and "PytorchStreamWriter" not in str(error):
            raise
        problem = "No space left on device, or a limit on the size of a file"  # torch does not say which
        raise OSError(errno.ENOSPC, problem, str(folder)) from None
