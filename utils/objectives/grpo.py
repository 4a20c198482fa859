"""GRPO on the rewards of sampled texts, by TRL's trainer with our token ids: prompts are those of baselines.py."""

import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from datasets import Dataset
from torch.utils.data import DataLoader

from utils.generation.chat import LocalChat
from utils.generator.examples import Example
from utils.training.recorder import Recorder
from utils.training.resumable import Resumable, common_settings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "TRL currently supports vLLM")  # which is not used here
    from trl import GRPOConfig, GRPOTrainer


class RewardTrainer(Resumable, GRPOTrainer):
    """GRPO (arXiv 2402.03300) with TRL's defaults: no KL term, one update per batch of samples."""

    length_flag = "--max_input_length"

    def __init__(
        self,
        flags: Namespace,
        model: Any,
        bf16: bool,
        chat: LocalChat,
        examples: list[Example],
        validation: list[Example],
        recorder: Recorder,
        reward: Callable[..., list[float | None]],
        *_: Any,
    ):
        """`reward` takes ids of questions as `prompts`, their samples as `completions`, and `completion_ids`."""
        self._prompts = {one.record["id"]: list(one.prompt) for one in examples}
        config = GRPOConfig(
            **common_settings(flags, bf16, evaluates=False, evaluates_first=False),
            num_generations=flags.num_generations,
            max_completion_length=flags.max_target_length,
        )
        model.generation_config.eos_token_id = chat.end_of_turn
        rows = Dataset.from_dict({"prompt": list(self._prompts)})
        super().__init__(model, reward, config, rows, processing_class=chat.tokenizer)
        self.follow(recorder, [one.length for one in examples])

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self._prompts[prompt] for prompt in prompts], None, {}

    def get_train_dataloader(self) -> DataLoader:
        return GRPOTrainer.get_train_dataloader(self)  # its order keeps a question's samples together

    def describe_batch(self, inputs: Any) -> str:
        return f"of {len(inputs)} samples"
