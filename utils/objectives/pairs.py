"""DPO on pairs of texts, by TRL's trainer, which gets our token ids: prompts are those of baselines.py."""

import shutil
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from utils.generator.trainer import Setup
from utils.training.resumable import Resumable


class PairTrainer(Resumable, DPOTrainer):
    """DPO (arXiv 2305.18290) with the start model as reference: the base without the adapter, or the start adapter."""

    length_flag = "--max_input_length"

    def __init__(self, its: Setup):
        rows = [
            {"prompt_ids": list(one.prompt), "chosen_ids": list(one.target), "rejected_ids": list(one.rejected)}
            for one in its.examples
        ]
        config = DPOConfig(**its.settings(), beta=its.flags.beta, max_length=None)
        tokenizer = its.chat.tokenizer
        super().__init__(its.model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        self.follow(its.recorder, [one.length for one in its.examples])

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset  # it is tokenized

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        shutil.rmtree(Path(output_dir or self.args.output_dir, "ref"), ignore_errors=True)  # made at each start
