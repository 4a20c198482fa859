"""What an API's tokens cost, by the prices that a user gives."""

from argparse import Namespace
from collections.abc import Mapping
from typing import NamedTuple


class Prices(NamedTuple):
    """US dollars a million tokens."""

    input: float
    cached: float  # of input that came from the API's cache
    output: float  # thoughts included, as APIs bill them

    def cost(self, tokens: Mapping[str, int | None]) -> float | None:
        """US dollars for a manifest's `tokens`, to a millionth; None where the API did not tell their numbers.

        Input that is not said to come from a cache has the full price.
        """
        prompt, written, cached = (tokens[f"{name}_tokens"] for name in ("prompt", "completion", "cached"))
        if prompt is None or written is None:
            return None
        cached = min(cached or 0, prompt)
        dollars = (prompt - cached) * self.input + cached * self.cached + written * self.output
        return round(dollars / 1e6, 6)


def prices_of(args: Namespace, whose: str = "") -> Prices | None:
    """The prices among the flags (of `cli.add_price_arguments`), None without; `whose` is "" or "planner_"."""
    price_in, price_out, cached = (vars(args).get(f"{whose}price_{name}") for name in ("in", "out", "cached"))
    return None if price_in is None else Prices(price_in, price_in if cached is None else cached, price_out)


def describe_cost(cost: float | None) -> str:
    return "cost unknown: the API reports no token counts" if cost is None else f"{cost:.4f} USD"
