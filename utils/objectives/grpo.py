"""GRPO on the rewards of sampled texts, by TRL's trainer with our token ids: prompts are those of baselines.py."""

import warnings
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from utils.generator.trainer import Setup
from utils.training.checkpoints import step_of
from utils.training.resumable import Resumable

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "TRL currently supports vLLM")  # which is not used here
    from trl import GRPOConfig, GRPOTrainer


class RewardTrainer(Resumable, GRPOTrainer):
    """GRPO (arXiv 2402.03300) with TRL's defaults: DAPO's loss, no KL term, one update per batch of samples.

    But without dropout: TRL samples in training mode, so the samples would be those of another policy. And a sample
    without a verdict is left out; TRL gives it no advantage, but counts its tokens in the loss's mean.
    """

    length_flag = "--max_input_length"

    def __init__(self, its: Setup):
        """`its.score` takes ids of questions as `prompts`, their samples as `completions`, and `completion_ids`."""
        self._prompts = {one.record["id"]: list(one.prompt) for one in its.examples}
        config = GRPOConfig(
            **its.settings(),
            num_generations=its.flags.num_generations,
            max_completion_length=its.flags.max_target_length,
            disable_dropout=True,
        )
        self._epochs_before = step_of(its.run.checkpoint) // its.flags.save_steps if its.run.checkpoint else 0
        its.model.generation_config.eos_token_id = its.chat.end_of_turn
        rows = Dataset.from_dict({"prompt": list(self._prompts)})
        super().__init__(its.model, its.score, config, rows, processing_class=its.chat.tokenizer)
        self.follow(its.recorder, [one.length for one in its.examples])

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self._prompts[prompt] for prompt in prompts], None, {}

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, fields: dict[str, Any], num_generations: int, *_: Any
    ) -> tuple[list[list[int]], None]:
        """Sample a question's texts at once, or a batch's if that is more; TRL would sample those of a whole step."""
        at_once, texts = max(num_generations, self.args.per_device_train_batch_size), []
        for start in range(0, len(prompt_ids), at_once):
            its = prompt_ids[start : start + at_once]
            texts += super()._generate_single_turn(its, images, fields, num_generations)[0]
        return texts, None

    def _calculate_rewards(self, *args: Any) -> torch.Tensor:
        rewards = super()._calculate_rewards(*args)  # (samples of all processes, 1), NaN without a verdict
        self._is_judged = ~rewards.isnan().all(1)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        its = self._is_judged[self.accelerator.process_index * len(inputs) :][: len(inputs)]
        batch["completion_mask"] = batch["completion_mask"] * its[:, None]
        batch["num_items_in_batch"] = self.accelerator.gather(batch["completion_mask"].sum()).sum()
        return batch

    def _get_train_sampler(self, *args: Any) -> Any:
        sampler = super()._get_train_sampler(*args)
        for _ in range(self._epochs_before):
            next(iter(sampler))  # a resumed training draws the orders of the epochs before again
        return sampler

    def get_train_dataloader(self) -> DataLoader:
        return GRPOTrainer.get_train_dataloader(self)  # its order keeps a question's samples together

    def describe_batch(self, inputs: Any) -> str:
        return f"of {len(inputs)} samples"
