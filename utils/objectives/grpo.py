"""GRPO on a round of scored samples: the clipped ratio of each token's probability to the one before the round.

With one step per round it is GRPO (arXiv 2402.03300) on samples of the model itself; further steps are clipped as in
PPO. As in DAPO (arXiv 2503.14476), all tokens of the round have the same weight. There is no dropout, because the
samples were drawn without it.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import torch
from accelerate.utils import gather_object

from utils.cli.progress import Progress
from utils.models.base_model import target_log_probs
from utils.training.checkpoints import Run
from utils.training.examples import Example, Training
from utils.training.trainer import CausalTrainer

CLIP = 0.2  # of the ratio, on both sides


def clipped_loss(now: torch.Tensor, before: torch.Tensor, advantages: torch.Tensor, kl: float = 0.0) -> torch.Tensor:
    """Return each token's loss (N,): -min(r A, clip(r) A), plus `kl` times an estimate of KL(now || before).

    Args:
        now, before: log-probabilities (N,) of the tokens by the model, and by the one before the first step.
        advantages: (N,) of the tokens' samples.
        kl: the estimate is exp(before - now) - (before - now) - 1 (Schulman's k3), which is never negative.
    """
    ratio = (now - before).exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return loss + kl * ((before - now).exp() - (before - now) - 1) if kl else loss


class ScoreTrainer(CausalTrainer):
    """Learns from calls with advantages; the log-probabilities before the first step are computed once per start."""

    def __init__(self, training: Training, model: Any, *others: Any):
        super().__init__(training, model, *others)
        tokens = sum(len(example.target) for example in training.examples)
        self._tokens_per_step = tokens * training.args.epochs / training.args.max_steps
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0

    def learn(self, run: Run, description: str) -> dict[str, Any]:
        # The weights are still those before the first step: a checkpoint is read later.
        self.train_dataset = list(zip(self._training.examples, self.log_probs(), strict=True))
        return super().learn(run, description)

    def log_probs(self) -> list[list[float]]:
        """Return the log-probabilities of each example's target, computed by all processes together."""
        numbered = list(enumerate(self._training.examples))
        mine = numbered[self.accelerator.process_index :: self.accelerator.num_processes]
        computed: dict[int, list[float]] = {}
        self.model.eval()
        progress = closing(Progress(len(mine), "calls, before the first step"))
        with torch.no_grad(), self.accelerator.autocast(), progress as progress:
            for number, example in mine:
                inputs = CausalTrainer.collate([example], 0)
                inputs = {name: value.to(self.accelerator.device) for name, value in inputs.items()}
                computed[number] = target_log_probs(self.model, **inputs).tolist()
                progress.update()
        self.model.train()
        gathered = {number: values for part in gather_object([computed]) for number, values in part.items()}
        return [gathered[number] for number, _ in numbered]

    @staticmethod
    def collate(pairs: Sequence[tuple[Example, list[float]]], pad: int) -> dict[str, torch.Tensor]:
        """Return a batch of examples with their log-probabilities before the first step.

        It is CausalTrainer's, with each target token's `before` and `advantages`, both (N,).
        """
        advantages = [example.advantage for example, _ in pairs for _ in example.target]
        return CausalTrainer.collate([example for example, _ in pairs], pad) | {
            "before": torch.tensor([value for _, values in pairs for value in values]),
            "advantages": torch.tensor(advantages),
        }

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        before, advantages = inputs.pop("before"), inputs.pop("advantages")
        loss = clipped_loss(target_log_probs(model, **inputs), before, advantages, self._training.args.kl).sum()
        # The gradients are averaged over processes.
        return loss / self._tokens_per_step * self.accelerator.num_processes
