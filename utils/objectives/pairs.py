"""DPO on pairs of texts, by TRL's trainer, which gets our token ids: prompts are those of baselines.py."""

import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from utils.generation.chat import LocalChat
from utils.generator.examples import Example
from utils.training.recorder import Recorder
from utils.training.resumable import Resumable, common_settings


class PairTrainer(Resumable, DPOTrainer):
    """DPO (arXiv 2305.18290) with the start model as reference: the base without the adapter, or the start adapter."""

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
        *_: Any,
    ):
        rows = [
            {"prompt_ids": list(one.prompt), "chosen_ids": list(one.target), "rejected_ids": list(one.rejected)}
            for one in examples
        ]
        settings = common_settings(flags, bf16, evaluates=False, evaluates_first=False)
        config = DPOConfig(**settings, beta=flags.beta, max_length=None)
        super().__init__(model, args=config, train_dataset=Dataset.from_list(rows), processing_class=chat.tokenizer)
        self.follow(recorder, [one.length for one in examples])

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset  # it is tokenized

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        shutil.rmtree(Path(output_dir or self.args.output_dir, "ref"), ignore_errors=True)  # made at each start
