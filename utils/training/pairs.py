"""DPO on pairs of texts with TRL's trainer, which gets our token ids, so prompts are the same as in baselines.py."""

from typing import Any

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from utils.training.examples import Training
from utils.training.resumable import Resumable


class PairTrainer(Resumable, DPOTrainer):
    """DPO (arXiv 2305.18290) with the start model as reference: the base without the adapter, or the start adapter."""

    def __init__(self, training: Training, model: Any, settings: dict[str, Any]):
        rows = [
            {
                "prompt_ids": list(example.prompt),
                "chosen_ids": list(example.target),
                "rejected_ids": list(example.rejected),
                "length": example.length,  # transformers groups examples by this column
            }
            for example in training.examples
        ]
        config = DPOConfig(**settings, beta=training.args.beta, max_length=None)
        dataset, tokenizer = Dataset.from_list(rows), training.chat.tokenizer
        super().__init__(model, args=config, train_dataset=dataset, processing_class=tokenizer)

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset  # it is already tokenized

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: TRL's has neither the base model nor the data, and manifest.json has both."""
