"""How many tokens a second vLLM's front end takes from its engine, as our answers ask for them. No model is computed.

python tests/speed/front_end.py --model_addr demo/models/chat
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import add_arguments, print_spread, write_figures

from utils.cli import make_parser, positive_int, run_script
from utils.generation.requests import Sampling
from utils.generation.vllm_engine import sampling_params

WARM_UP = 200  # tokens of each request before the clock starts


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--model_addr", required=True, metavar="FOLDER", help="whose tokenizer decodes")
    parser.add_argument("--requests", type=positive_int, default=256, help="at a time (%(default)s)")
    parser.add_argument("--tokens", type=positive_int, default=400, help="of each request (%(default)s)")
    add_arguments(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    from vllm.tokenizers import get_tokenizer

    tokenizer = get_tokenizer(args.model_addr)
    pairs = [[rate(tokenizer, args, logprobs) for logprobs in (None, 0)] for _ in range(args.runs)]
    figures = {
        "ours": print_spread("tokens a second", [ours for ours, _ in pairs]),
        "with_logprobs": print_spread("with the log-probability of each", [other for _, other in pairs]),
        "ratio": print_spread("ours, times those with", [ours / other for ours, other in pairs]),
    }
    write_figures(args.json_addr, figures)
    return 0


def rate(tokenizer: Any, args: argparse.Namespace, logprobs: int | None) -> float:
    """Tokens a second; `logprobs` is what is asked for besides what our engine asks for."""
    import numpy as np
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.outputs import LogprobsLists

    processor = OutputProcessor(tokenizer, log_stats=False)
    for number in range(args.requests):
        params = sampling_params(Sampling(0.7, 0.9, 2**20, number))
        params.logprobs = params.logprobs if logprobs is None else logprobs
        request = EngineCoreRequest(str(number), [1] * 100, None, params, None, 0.0, None, None, None)
        request.external_req_id = request.request_id
        processor.add_request(request, None)
    ids = tokenizer.encode("The reed rattles when it dries out, so soak it, and seat it lower on the table. ")
    wanted = params.logprobs is not None

    def step(place: int) -> None:
        token = ids[place % len(ids)]
        told = LogprobsLists(np.array([[token]]), np.array([[-1.0]]), np.array([1])) if wanted else None
        outputs = [EngineCoreOutput(str(number), [token], told) for number in range(args.requests)]
        processor.process_outputs(outputs)

    for place in range(min(WARM_UP, args.tokens)):
        step(place)
    started = time.perf_counter()
    for place in range(args.tokens):
        step(place)
    return args.requests * args.tokens / (time.perf_counter() - started)


if __name__ == "__main__":
    run_script(main)
