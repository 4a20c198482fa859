"""The ranker of "Rethinking Personalized Generation: Test-Time Alignment via Factorized Ranking Models" (2026)."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import nn

from utils.base.errors import UserError
from utils.base.manifest import manifest_of
from utils.base.progress import Progress
from utils.data.responses import Responses, are_answered
from utils.data.scores import SampleScores
from utils.data.states import RANKER, Pool, Scored, States, read_states, refuse_states

WIDTH, DROPOUT = 256, 0.1
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY, MOST_NORM, SEED = 15, 64, 5e-4, 0.01, 1.0, 0


def make_network(size: int) -> nn.Sequential:
    """Return the network from `size` numbers to one: three linear layers, with GELU and dropout between them."""
    layers = [nn.Linear(size, WIDTH), nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Dropout(DROPOUT), nn.Linear(WIDTH, 1))


def standardized(scores: Sequence[float]) -> list[float]:
    """Return a pool's scores minus their mean, divided by the sample deviation; unchanged if that is below 1e-6."""
    deviation = stdev(scores) if len(scores) > 1 else 0.0
    return [*scores] if deviation < 1e-6 else [(score - fmean(scores)) / deviation for score in scores]


def inputs_of(states: States, pools: Sequence[Pool], kinds: str) -> torch.Tensor:
    """Return the states named in `kinds`, concatenated, for these pools' responses: float32 (S, len(kinds) * D)."""
    question_rows, response_rows = zip(*((number, row) for number, rows, _ in pools for row in rows), strict=True)
    parts = [states.arrays[kind][[*(response_rows if kind == "y" else question_rows)]] for kind in kinds]
    return torch.from_numpy(np.concatenate(parts, axis=1)).float()


def loss_of(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of the network on inputs (S, ...) and targets (S,)."""
    return nn.functional.mse_loss(network(inputs)[:, 0], targets)


def fit(training: Scored, validation: Scored | None, kinds: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the weights of a trained network, and figures: `epoch`, each epoch's mean loss `losses`, and `selected`.

    `selected` has for each epoch the mean score of the responses that the network prefers in `validation`. The weights
    are those of the first epoch with the highest one, or without validation those of the last epoch.
    """
    pools, states = training
    torch.manual_seed(SEED)
    order, network = torch.Generator().manual_seed(SEED), make_network(len(kinds) * states.arrays["y"].shape[1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    figures: dict[str, Any] = {"losses": [], **({"selected": []} if validation else {})}
    with closing(Progress(EPOCHS, "epochs")) as progress:
        for epoch in range(1, EPOCHS + 1):
            losses = []
            for places in torch.randperm(len(pools), generator=order).split(BATCH):
                batch = [pools[place] for place in places]
                targets = torch.tensor([target for *_, scores in batch for target in standardized(scores)])
                loss = loss_of(network.train(), inputs_of(states, batch, kinds), targets)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), MOST_NORM)
                optimizer.step()
                losses.append(loss.item())
            figures["losses"].append(fmean(losses))
            if validation:
                best = (pool[2][predict(network, validation[1], pool, kinds).argmax()] for pool in validation[0])
                figures["selected"].append(fmean(best))
            if not validation or figures["selected"].index(max(figures["selected"])) == epoch - 1:
                weights, figures["epoch"] = {name: one.clone() for name, one in network.state_dict().items()}, epoch
            progress.update(loss=f"{figures['losses'][-1]:.4f}")
    return weights, figures


def predict(network: nn.Module, states: States, pool: Pool, kinds: str) -> torch.Tensor:
    """Return the network's output for each response of a pool (S,)."""
    with torch.inference_mode():
        return network.eval()(inputs_of(states, [pool], kinds))[:, 0]


def rank_samples(ranker: Sequence[str], responses: Responses, path: str) -> tuple[SampleScores, dict[str, Any]]:
    """Return a ranker's score for each response in the file `path` (None for a missing answer), and its settings.

    `ranker` is the ranker's folder and the file of the responses' states. UserError if the two or the responses do not
    belong together.
    """
    folder, states = Path(ranker[0]), read_states(ranker[1], path)
    if (manifest := manifest_of(folder / RANKER)) is None:
        raise UserError(f"{folder}: has no {RANKER}, or it was changed since; use a folder of utils/train_ranker.py")
    with safe_open(folder / RANKER, "pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        refuse_states(states, manifest["settings"], {*json.loads(file.metadata()["questions"])}, ranker[0])
    network, ranked = make_network(weights["0.weight"].shape[1]), {}
    network.load_state_dict(weights)
    for number, (question_id, _, first, end) in enumerate(states.questions):
        scores = predict(network, states, (number, [*range(first, end)], []), manifest["settings"]["vectors"]).tolist()
        answered = are_answered(response["output"] for response in responses[question_id])
        ranked[question_id] = [one if is_answer else None for one, is_answer in zip(scores, answered, strict=True)]
    return ranked, manifest["settings"]
