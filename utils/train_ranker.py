"""Train a ranker on scored responses: it chooses one of several responses by the generator's own hidden states.

  python utils/train_ranker.py --response_addr samples.json --score_addr samples_scores.json \\
      --states_addr samples_states.safetensors --output_dir ranker

utils/embed_responses.py makes the states. Training takes minutes on the CPU. After a killed run, it starts over.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import count_noun
from utils.base.made import Made, State, say_finished
from utils.base.manifest import describe_run, file_hash, settings_of
from utils.base.writing import open_whole
from utils.data.scores import judges_of, read_scores, seen_by, strategy_in_words
from utils.data.states import MODEL, RANKER, read_pools, refuse_states

SCRIPT = "utils/train_ranker.py"


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--response_addr", required=True, metavar="FILE", help="responses with several samples per question")
    add("--score_addr", required=True, metavar="FILE",
        help="scores of all samples (evaluate_responses.py --samples all)")
    add("--states_addr", required=True, metavar="FILE", help="states of the responses, by utils/embed_responses.py")
    add("--validation_addr", nargs=3, metavar=("RESPONSES", "SCORES", "STATES"),
        help="the same three files for other questions, to choose the best epoch by (default: use the last epoch)")
    add("--inputs", choices=["xuy", "xy", "y"], default="xuy",
        help="states to read: x of the question, u of its posts, y of the response (%(default)s)")
    add("--output_dir", required=True, metavar="DIR", help="folder for the ranker")
    # fmt: on
    cli.add_overwrite_argument(parser, parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    path, validation_files = str(Path(args.output_dir) / RANKER), args.validation_addr or []
    training_files = [args.response_addr, args.score_addr, args.states_addr]
    cli.check_outputs([path], training_files + validation_files)
    pools, states = read_pools(*training_files)
    hashes, validation = {digest for _, digest, *_ in states.questions}, None
    if validation_files:
        validation = read_pools(*validation_files)
        refuse_states(validation[1], states.settings, hashes, "the ranker")
        hashes |= {digest for _, digest, *_ in validation[1].questions}
    score_addrs = [args.score_addr, *validation_files[1:2]]
    scores, judges = list(map(read_scores, score_addrs)), map(settings_of, score_addrs)
    settings = {name: states.settings[name] for name in MODEL} | {"script": SCRIPT, "vectors": args.inputs}
    settings |= {"strategy": strategy_in_words(scores[0]), "judges": sorted(set().union(*map(judges_of, judges)))}
    settings |= {"saw": sorted(set().union(*map(seen_by, scores)))}
    settings |= {"learnt": list(map(file_hash, training_files + validation_files))}
    output = Made(path, settings, args.overwrite)
    if output.check() is State.CURRENT:
        say_finished(args.output_dir)
        return 0
    from safetensors.torch import save

    from utils.training.ranker import fit

    with output.writing(describe_run(vars(args), {}, "CPU")) as (staged, manifest), open_whole(staged, "wb") as file:
        weights, figures = fit((pools, states), validation, args.inputs)
        file.write(save(weights, {"questions": json.dumps(sorted(hashes))}))
        manifest |= figures
    chosen = f" of {len(figures['losses'])}, validation score {max(figures['selected']):z.4f}" if validation else ""
    print(f"{args.output_dir}: trained on {count_noun(len(pools), 'question')}; epoch {figures['epoch']}{chosen}")
    return 0


if __name__ == "__main__":
    cli.run_script(main)
