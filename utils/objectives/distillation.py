"""On-policy self-distillation (GRASP, arXiv 2609.35262): the student learns from a teacher that sees the rubric.

The teacher is the model that the training starts from, frozen: the same weights without the adapter. TRL's GKDTrainer
does not serve here, because its teacher reads the student's prompt and is a second copy of the model.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from utils.models.base_model import write_reply
from utils.training.examples import Example
from utils.training.trainer import CausalTrainer


def forward_kl(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """Return KL(teacher || student) in nats, summed over the vocabulary, of logits (T, V); shape (T,)."""
    teacher, student = (logits.float().log_softmax(-1) for logits in (teacher, student))
    return torch.nn.functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)


class DistillationTrainer(CausalTrainer):
    """Samples a reply per question, and brings the student's distribution at each of its tokens to the teacher's.

    The loss is the mean over a reply's tokens, averaged over the step's questions.
    """

    def __init__(self, *setup: Any):
        super().__init__(*setup)
        self.model_accepts_loss_kwargs = False  # the number of sampled tokens is not known before the loss

    @staticmethod
    def collate(examples: Sequence[Example], pad: int) -> dict[str, Any]:
        """Return the batch's only example, and its prompt as input_ids (1, P)."""
        [example] = examples
        return {"input_ids": torch.tensor([list(example.prompt)]), "example": example}

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        example, plain = inputs["example"], self.accelerator.unwrap_model(model)
        plain.eval()  # in training, gradient checkpointing turns off the cache, and the teacher would have dropout
        reply = self._sample(plain, example)
        with torch.no_grad(), plain.disable_adapter():
            teacher = reply_logits(plain, example.teacher, reply)
        plain.train()
        return forward_kl(teacher, reply_logits(model, example.prompt, reply)).mean()

    def _sample(self, plain: Any, example: Example) -> torch.Tensor:
        """Return the student's reply (T,), drawn by seed, step and question, so that a resumed run repeats it."""
        drawn = repr((self.args.seed, self.state.global_step, example.record["id"])).encode()
        devices = [self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self.accelerator.autocast():
            torch.manual_seed(int.from_bytes(hashlib.sha256(drawn).digest()[:8], "big") >> 1)
            most_tokens = self._training.args.max_target_length
            return write_reply(plain, self._chat, example.prompt, most_tokens, is_sampled=True)[0]


def reply_logits(model: Any, prompt: Sequence[int], reply: torch.Tensor) -> torch.Tensor:
    """Return the logits (T, V) that predict each of a reply's tokens (T,) after a prompt."""
    ids = torch.cat([torch.tensor(list(prompt), device=reply.device), reply])[None]
    return model(input_ids=ids, use_cache=False, logits_to_keep=len(reply) + 1).logits[0, :-1]
