"""The cost of a run, by hand from a server's reports, and from an API's own bill."""

import json
import re

import pytest
from api_server import Reply, running
from faulty_server import FaultyServer
from test_baselines import SAMPLE, answer, flags, output, run, server  # noqa: F401 (fixtures)

import baselines
import evaluate_responses
from utils.base.manifest import read_manifest
from utils.generation.api_engine import read_usage


def count(requests, text):
    """Return the cost of requests answered with `text`, at 3, 1 (cached) and 10 (output) USD per million tokens."""
    prompts = [sum(len(one["content"].split()) for one in request["messages"]) for request in requests]
    return sum((n - n // 2) * 3 + n // 2 * 1 + len(text.split()) * 10 for n in prompts) / 1e6


PRICES = ["--price_in", 3, "--price_cached", 1, "--price_out", 10]


def test_the_manifest_has_the_cost_of_every_try(server, flags, output, capsys):
    text = json.dumps({"personalized_answer": "Yes, it is so."})
    server.reply = lambda request: Reply(text if "response_format" in request else "I would rather not say")
    run(flags, output, *PRICES, "--max_retries", 1)
    assert len(server.requests) == 26
    held = [request for request in server.requests if "response_format" in request]
    free = [request for request in server.requests if "response_format" not in request]
    cost = read_manifest(output)["cost_usd"]
    assert cost == pytest.approx(count(held, text) + count(free, "I would rather not say"), abs=5e-7) and cost > 0
    assert f"; {cost:.4f} USD\n" in capsys.readouterr().out
    run(flags, output, "--price_in", 7, "--price_out", 7, "--max_retries", 1)  # no setting
    assert len(server.requests) == 26 and "already finished" in capsys.readouterr().out


def test_a_dry_run_estimates_the_cost(server, flags, output, capsys):
    run_dry = baselines.main
    arguments = [*map(str, flags), "--inputs_addr", str(SAMPLE), "--output_addr", str(output), "--dry_run"]
    assert run_dry([*arguments, "--max_tokens", "500", *map(str, PRICES)]) == 0
    printed = capsys.readouterr().out
    tokens = int(re.search(r"13 requests, (\d+) prompt tokens", printed)[1])
    prompts, whole = tokens * 3 / 1e6, (tokens * 3 + 13 * 500 * 10) / 1e6
    told = f"{prompts:.4f} USD for the prompts, at most {whole:.4f} with the outputs, {4 * whole:.4f} with retries\n"
    assert told in printed and server.requests == []
    assert run_dry(arguments) == 0 and "USD" not in capsys.readouterr().out


USAGES = {
    # A request to Grok with xAI's own bill for it, 232856000 ticks of 1e-10 USD: thoughts are beside the output.
    "xAI": ((10120, 1499, 14428, 128, 2809), (1.25, 0.2, 2.5), 0.0232856),
    # OpenAI has them in it: 1,117 of input, 1,000 of output at 1.25 and 10.
    "OpenAI": ((1117, 1000, 2117, 0, 960), (1.25, 0.125, 10), 0.01139625),
    "no total": ((1117, 1000, None, 0, 960), (1.25, 0.125, 10), 0.01139625),
    "a total that is less": ((1117, 1000, 5, 0, 960), (1.25, 0.125, 10), 0.01139625),
}


@pytest.mark.parametrize("name", USAGES)
def test_thoughts_count_as_output_and_once(name, tmp_path):
    (prompt, written, total, cached, thoughts), (price_in, price_cached, price_out), dollars = USAGES[name]

    def report(completion):
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": total}
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        usage["completion_tokens_details"] = {"reasoning_tokens": thoughts}
        return completion | {"usage": usage}

    (tmp_path / "key.txt").write_text("any")
    with running(FaultyServer(lambda request: answer("Yes."), lambda body, times: "other JSON")) as server:
        server.body = report
        api = ["--openai", "--model_addr", "m", "--base_url", server.url, "--api_key_addr", f"{tmp_path}/key.txt"]
        prices = ["--price_in", price_in, "--price_cached", price_cached, "--price_out", price_out]
        run(api, tmp_path / "out.json", *prices, "--limit", 1)
    assert read_manifest(tmp_path / "out.json")["cost_usd"] == pytest.approx(dollars, abs=5e-7)


def usage(prompt, completion, total=None, **more):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **more}


DETAILS, NONE = {"cached_tokens": 900}, {"cached_tokens": 0}


@pytest.mark.parametrize(
    ("reported", "counts"),
    [  # prompt with its cached part, cached part, output with thoughts, thoughts
        (usage(1000, 10, 1010, prompt_tokens_details=DETAILS), (1000, 900, 10, None)),
        (usage(1000, 10, 1010, prompt_cache_hit_tokens=900, prompt_cache_miss_tokens=100), (1000, 900, 10, None)),
        (usage(1000, 10, 1010, cached_tokens=900), (1000, 900, 10, None)),  # Moonshot
        (usage(1000, 10, 1010, prompt_tokens_details=DETAILS, cache_read_input_tokens=900), (1000, 900, 10, None)),
        (usage(1000, 10, 1010, prompt_cache_hit_tokens=0), (1000, 0, 10, None)),
        (usage(1000, 10, 1010, cache_read_input_tokens=0, cache_creation_input_tokens=0), (1000, None, 10, None)),
        # Cached tokens beside the prompt's.
        (usage(100, 10, 1010, cache_read_input_tokens=900), (1000, 900, 10, None)),
        (usage(100, 10, 110, cache_read_input_tokens=900), (1000, 900, 10, None)),
        (usage(100, 10, 110, prompt_tokens_details=DETAILS), (1000, 900, 10, None)),
        (usage(1000, 10, 1910, prompt_tokens_details=DETAILS), (1900, 900, 10, None)),
        ({"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 900}, (1000, 900, 10, None)),
        (
            usage(100, 10, 1010, prompt_tokens_details={"cached_tokens": 0}, cache_read_input_tokens=900),
            (1000, 900, 10, None),
        ),
        (usage(1000, 10, 1010, cached_tokens=0, prompt_cache_hit_tokens=900), (1000, 900, 10, None)),
        # Either reading is possible, or the price is not known.
        (
            usage(1000, 10, 1110, prompt_tokens_details={"cached_tokens": 100}, reasoning_tokens=100),
            (None, 100, 10, 100),
        ),
        (usage(1000, 10, 1010, cache_read_input_tokens=900), (None, 900, 10, None)),
        (usage(1000, 10, cache_read_input_tokens=900), (None, 900, 10, None)),
        (usage(100, 10, 1060, cache_read_input_tokens=900, cache_creation_input_tokens=50), (None, 900, 10, None)),
        (usage(1000, 10, 1010, prompt_tokens_details={**DETAILS, "cache_write_tokens": 50}), (None, 900, 10, None)),
        # Other names and places.
        ({"input_tokens": 7, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}, (7, 4, 5, None)),
        (usage(7, 5, 12, reasoning_tokens=3), (7, None, 5, 3)),
        (usage(7, 5, 12, completion_tokens_details={"reasoning_tokens": 3}), (7, None, 5, 3)),
        (usage(7, 5, 15, completion_tokens_details={"reasoning_tokens": 3}), (7, None, 8, 3)),
        (usage(7, 5, 15), (7, None, 8, None)),  # Gemini
        (usage(7, 5, reasoning_tokens=20), (7, None, 25, 20)),
        # Not counts.
        (usage(0, 5, 5), (None, None, 5, None)),
        (usage(0, 0, 0), (None, None, 0, None)),
        (usage(-1, "5", None, prompt_tokens_details=[], cached_tokens=True), (None, None, None, None)),
        (None, (None, None, None, None)),
    ],
)
def test_the_counts_of_different_servers(reported, counts):
    assert tuple(read_usage(reported)) == counts


@pytest.mark.parametrize(("price", "remedy"), [("2.5e-06", "2.5"), ("0.00000015", "0.15"), ("0.0005", "500")])
def test_a_price_of_one_token_gets_a_note(price, remedy, capsys):
    needed = ["--model_addr", "m", "--openai", "--inputs_addr", "a.json", "--output_addr", "b.json"]
    for prices in (["--price_in", price, "--price_out", "1"], ["--price_in", "1", "--price_out", price]):
        baselines.build_parser().parse_args([*needed, *prices])
        unit = "prices are in US dollars per million tokens; if this is the price of one token, use"
        assert f"note: price {price}: {unit} {remedy}\n" in capsys.readouterr().err
    baselines.build_parser().parse_args([*needed, "--price_in", "0.01", "--price_out", "0"])
    assert "note" not in capsys.readouterr().err


def test_an_unreported_cost_is_none(tmp_path, capsys):
    (tmp_path / "key.txt").write_text("any")
    with running(FaultyServer(lambda request: answer("Yes."), lambda body, times: "other JSON")) as server:
        server.body = lambda completion: completion | {"usage": None}
        api = ["--openai", "--model_addr", "m", "--base_url", server.url, "--api_key_addr", f"{tmp_path}/key.txt"]
        run(api, tmp_path / "out.json", *PRICES, "--limit", 1)
    assert read_manifest(tmp_path / "out.json")["cost_usd"] is None
    assert "; cost unknown: the API does not report all token counts\n" in capsys.readouterr().out


def test_shards_and_verdicts_add_up(server, flags, output, capsys):
    for i in range(2):
        shard = [*flags, *PRICES, "--inputs_addr", SAMPLE, "--output_addr", output]
        assert baselines.main([*map(str, shard), "--num_shards", "2", "--shard_index", str(i)]) == 0
    text = server.reply(server.requests[0]).text
    run(flags, output, *PRICES)
    answered = list(server.requests)
    assert read_manifest(output)["cost_usd"] == pytest.approx(count(answered, text), abs=2e-6)
    server.reply = lambda request: Reply('{"match_score": 1}')
    scores, judge = output.with_name("scores.json"), [*flags, *PRICES, "--inputs_addr", SAMPLE]
    judge[judge.index("--model_addr")] = "--evaluator_llm"
    capsys.readouterr()
    files = ["--response_addr", output, "--score_addr", scores]
    assert evaluate_responses.main([str(word) for word in (*judge, *files)]) == 0
    cost = read_manifest(scores)["cost_usd"]
    assert cost == pytest.approx(count(server.requests[len(answered) :], '{"match_score": 1}'), abs=5e-7)
    assert capsys.readouterr().out.endswith(f"; {cost:.4f} USD\n")
