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
from utils.generator.examples import Example
from utils.generator.trainer import CausalTrainer, Setup
from utils.training.base_model import target_log_probs
from utils.training.checkpoints import Run

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

    def __init__(self, setup: Setup):
        super().__init__(setup)
        self._kl, self._examples = setup.flags.kl, setup.examples
        self._number_of = {id(example): number for number, example in enumerate(setup.examples)}
        tokens = sum(len(example.target) for example in setup.examples)
        self._tokens_per_step = tokens * setup.flags.epochs / setup.flags.max_steps
        for module in setup.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0

    def learn(self, run: Run, told: str) -> dict[str, Any]:
        # The weights are still those before the first step: a checkpoint is read later.
        self._before = self._log_probs()
        return super().learn(run, told)

    def _log_probs(self) -> dict[int, list[float]]:
        """Return the log-probabilities of each example's target, by its number, computed by all processes together."""
        numbered = list(enumerate(self._examples))
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
        return {number: values for part in gather_object([computed]) for number, values in part.items()}

    def collate(self, examples: Sequence[Example], pad: int) -> dict[str, torch.Tensor]:
        """Return a batch as CausalTrainer's, with each target token's `before` and `advantages`, both (N,)."""
        numbers = [self._number_of[id(example)] for example in examples]
        before = [value for number in numbers for value in self._before[number]]
        advantages = [example.advantage for example in examples for _ in example.target]
        return CausalTrainer.collate(examples, pad) | {
            "before": torch.tensor(before), "advantages": torch.tensor(advantages),
        }  # fmt: skip

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        before, advantages = inputs.pop("before"), inputs.pop("advantages")
        loss = clipped_loss(target_log_probs(model, **inputs), before, advantages, self._kl).sum()
        # The gradients are averaged over processes.
        return loss / self._tokens_per_step * self.accelerator.num_processes
