"""The trainers of --objective: encoder-decoders on references, and chat models by distillation or GRPO.

This module imports torch. DPO is in pairs.py, which also imports TRL.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from accelerate.utils import gather_object

from utils.base.progress import Progress
from utils.generation.beams import batches, fuse, pad_passages, room_of, write
from utils.generation.encoder_decoder import NUM_BEAMS
from utils.generation.requests import passages_of
from utils.models.base_model import NO_LOSS, target_log_probs
from utils.training.examples import Example, Training
from utils.training.trainer import CausalTrainer, TextTrainer, Written

CLIP = 0.2  # GRPO's ratio is clipped to 1 - CLIP and 1 + CLIP


class EncoderDecoderTrainer(TextTrainer):
    @staticmethod
    def collate(examples: Sequence[Example], pad: int) -> dict[str, torch.Tensor]:
        """Return a batch: prompts as in `pad_passages`, a plain prompt as a single passage, and `labels` (B, T)."""
        batch = pad_passages([passages_of(example.prompt) for example in examples], pad, "cpu")
        targets = [torch.tensor(list(example.target)) for example in examples]
        labels = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=NO_LOSS)
        return {**batch, "labels": labels}

    def counts(self) -> str:
        return f"questions: {len(self._training.validation)}, beams: {NUM_BEAMS}"

    def summed_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        labels, plain = inputs.pop("labels"), self.accelerator.unwrap_model(model)
        with self.accelerator.autocast():
            encoded = fuse(plain, **inputs)
            before = plain.prepare_decoder_input_ids_from_labels(labels=labels)
            logits = model(**encoded, decoder_input_ids=before, use_cache=False).logits.float()
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LOSS, reduction="sum"
        )

    def write_all(self, examples: list[Example]) -> Iterator[Written]:
        plain, most_tokens = self.accelerator.unwrap_model(self.model), self._training.args.max_target_length
        room = room_of(plain, NUM_BEAMS, most_tokens)
        for numbers in batches([example.prompt for example in examples], room):
            prompts = [examples[number].prompt for number in numbers]
            # Without Accelerate's bf16 wrapper, texts are the same as the checkpoint writes later.
            wrapped = vars(plain).pop("forward", None)
            written = write(plain, self._chat.tokenizer, prompts, NUM_BEAMS, most_tokens)
            if wrapped is not None:
                plain.forward = wrapped
            for number, (ids, is_cut) in zip(numbers, written, strict=True):
                yield examples[number], ids, is_cut


def forward_kl(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """Return KL(teacher || student) in nats for each token, from logits (T, V); shape (T,)."""
    teacher, student = (logits.float().log_softmax(-1) for logits in (teacher, student))
    return torch.nn.functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)


class DistillationTrainer(CausalTrainer):
    """Self-distillation (GRASP, arXiv 2609.35262): the student learns from a teacher that sees the rubric.

    At each token of the student's own samples, it learns the teacher's distribution. The loss is the mean over a
    sample's tokens, averaged over the step's samples. The teacher is the base model: the same weights without the
    adapter. With one step per round of samples, this is on-policy, as in the paper. TRL's GKDTrainer cannot do this,
    because its teacher reads the student's prompt and is a second copy of the model.
    """

    returns_share = False  # all samples weigh the same, whatever their length

    @staticmethod
    def collate(examples: Sequence[Example], pad: int) -> dict[str, Any]:
        """Return the batch's only example, with its prompt as input_ids (1, P), and its sample (T,)."""
        [example] = examples
        prompt, reply = torch.tensor([list(example.prompt)]), torch.tensor(list(example.target))
        return {"input_ids": prompt, "reply": reply, "teacher": example.teacher}

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        reply, plain = inputs["reply"], self.accelerator.unwrap_model(model)
        plain.eval()  # the teacher has no dropout
        with torch.no_grad(), plain.disable_adapter():
            teacher = reply_logits(plain, torch.tensor([list(inputs["teacher"])], device=reply.device), reply)
        plain.train()
        return forward_kl(teacher, reply_logits(model, inputs["input_ids"], reply)).mean()


def reply_logits(model: Any, prompt: torch.Tensor, reply: torch.Tensor) -> torch.Tensor:
    """Return the logits (T, V) that predict the tokens of a reply (T,) after a prompt (1, P)."""
    ids = torch.cat([prompt, reply[None]], dim=1)
    return model(input_ids=ids, use_cache=False, logits_to_keep=len(reply) + 1).logits[0, :-1]


def clipped_loss(now: torch.Tensor, before: torch.Tensor, advantages: torch.Tensor, kl: float = 0.0) -> torch.Tensor:
    """Return each token's loss (N,): -min(r A, clip(r) A), plus `kl` times an estimate of KL(now || before).

    Args:
        now, before: log-probabilities (N,) of the tokens, by the model now and by the model before the first step.
        advantages: (N,), the advantage of each token's sample.
        kl: weight of the estimate exp(before - now) - (before - now) - 1 (Schulman's k3), which is never negative.
    """
    ratio = (now - before).exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return loss + kl * ((before - now).exp() - (before - now) - 1) if kl else loss


class ScoreTrainer(CausalTrainer):
    """GRPO on a round of scored samples: the clipped ratio of each token's probability to the one before the round.

    With one step per round it is on-policy GRPO (arXiv 2402.03300); further steps are clipped as in PPO. As in DAPO
    (arXiv 2503.14476), all tokens of the round have the same weight. Log-probabilities are those of the distribution
    that was sampled, so logits are divided by the samples' temperature, also for the KL term, as in TRL and verl.
    Dropout is off, as when the samples were drawn. The log-probabilities before the first step are computed once per
    start.
    """

    def __init__(self, training: Training, model: Any, *others: Any):
        super().__init__(training, model, *others)
        tokens = sum(len(example.target) for example in training.examples)
        self._tokens_per_step = tokens * training.args.epochs / training.args.max_steps
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0

    def learn(self, *run: Any) -> dict[str, Any]:
        # The weights are still those before the first step, because a checkpoint is loaded later.
        pairs = zip(self.train_dataset, self.log_probs(), strict=True)
        self.train_dataset = [{**row, "example": (row["example"], before)} for row, before in pairs]
        return super().learn(*run)

    def log_probs(self) -> list[list[float]]:
        """Return the log-probabilities of each example's target; the processes divide the work."""
        numbered = list(enumerate(self._training.examples))
        mine = numbered[self.accelerator.process_index :: self.accelerator.num_processes]
        computed: dict[int, list[float]] = {}
        self.model.eval()
        progress = closing(Progress(len(mine), "calls, before the first step"))
        with torch.no_grad(), self.accelerator.autocast(), progress as progress:
            for number, example in mine:
                inputs = CausalTrainer.collate([example], 0)
                inputs = {name: value.to(self.accelerator.device) for name, value in inputs.items()}
                computed[number] = target_log_probs(self.model, temperatures=example.temperature, **inputs).tolist()
                progress.update()
        self.model.train()
        gathered = {number: values for part in gather_object([computed]) for number, values in part.items()}
        return [gathered[number] for number, _ in numbered]

    @staticmethod
    def collate(pairs: Sequence[tuple[Example, list[float]]], pad: int) -> dict[str, torch.Tensor]:
        """Return a batch of examples with their log-probabilities before the first step.

        The batch is CausalTrainer's, with `before`, `advantages` and `temperatures` of each target token, all (N,).
        """
        tokens = [example for example, _ in pairs for _ in example.target]
        return CausalTrainer.collate([example for example, _ in pairs], pad) | {
            "before": torch.tensor([value for _, values in pairs for value in values]),
            "advantages": torch.tensor([example.advantage for example in tokens]),
            "temperatures": torch.tensor([example.temperature for example in tokens]),
        }

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        before, advantages = inputs.pop("before"), inputs.pop("advantages")
        loss = clipped_loss(target_log_probs(model, **inputs), before, advantages, self._training.args.kl).sum()
        # The gradients are averaged over processes.
        return loss / self._tokens_per_step * self.accelerator.num_processes
