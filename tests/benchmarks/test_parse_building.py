"""A model's output on a post: whether it needs personalization, and its aspects."""

import json

import pytest

from utils.building.asking import ASPECTS_SCHEMA, NEEDS_SCHEMA, parse_aspects, parse_needs


@pytest.mark.parametrize(
    ("text", "value", "how"),
    [
        ('{"needs_personalization": true}', True, "strict"),
        ('```json\n{"needs_personalization": false}\n```', False, "strict"),
        ('{"needs_personalization": "False"}', False, "repaired"),
        ("{'needs_personalization': True}", True, "repaired"),
        ("needs_personalization: false", False, "repaired"),
        ('{"needs_personalization": true', True, "repaired"),
        ('{"needs_personalization": true}\nI was wrong. {"needs_personalization": false}', False, "repaired"),
        ('{"needs_personalization": true}\nuser: Hi\n{"needs_personalization": false}', True, "repaired"),
        ('{"needs_personalization": {"type": "boolean"}} {"needs_personalization": false}', False, "repaired"),
    ],
)
def test_needs(text, value, how):
    parsed = parse_needs(text)
    assert (parsed.value, parsed.how, parsed.reason) == (value, how, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the text is empty"),
        ("Yes, it does.", "no needs_personalization in the text"),
        ('{"needs_personalization": null}', "needs_personalization is null, not true or false"),
        ('{"needs_personalization": 1}', "needs_personalization is neither true nor false"),
        ("needs_personalization: maybe", "needs_personalization is maybe, not true or false"),
        ('{"needs_personalization": tru', "needs_personalization is tru, not true or false"),
    ],
)
def test_no_needs(text, reason):
    parsed = parse_needs(text)
    assert (parsed.value, parsed.how, parsed.reason) == (None, "none", reason)


ASPECT = {"aspect": "Price", "evidence": "cheap", "reason": "poor"}


def said(**fields):
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("text", "value", "how"),
    [
        (f"```json\n{said(enough_details=True, aspects=[ASPECT])}\n```", [ASPECT], "strict"),
        (said(enough_details=False, aspects=[ASPECT]), [], "strict"),
        (said(enough_details=False), [], "strict"),
        (said(enough_details="true", aspects=[{**ASPECT, "aspect": " Low\nprice "}]),
         [{**ASPECT, "aspect": "Low price"}], "strict"),
        (said(aspects=[ASPECT]), [ASPECT], "repaired"),
        (said(enough_details=True, aspects=[ASPECT]) + "\nUser: another", [ASPECT], "repaired"),
        (said(enough_details=False) + said(enough_details=True, aspects=[ASPECT]), [ASPECT], "repaired"),
        ("Here:\n" + said(enough_details=True, aspects=[{**ASPECT, "more": 1}]), [ASPECT], "repaired"),
        ('{"enough_details": true, "aspects": [{"aspect": "a", "evidence": "x\ny", "reason": "r"}]}',
         [{"aspect": "a", "evidence": "x\ny", "reason": "r"}], "repaired"),
    ],
)  # fmt: skip
def test_aspects(text, value, how):
    parsed = parse_aspects(text)
    assert (parsed.value, parsed.how, parsed.reason) == (value, how, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the text is empty"),
        (said(enough_details=True, aspects=[ASPECT])[:-3], "no valid JSON object with aspects"),
        (said(enough_details=True, aspects=[]), "aspects is not a list or is empty, although there are enough details"),
        (said(enough_details=True), "aspects is not a list or is empty, although there are enough details"),
        (said(enough_details=True, aspects={"a": 1}), "aspects is not a list or is empty, although"),
        (said(enough_details="perhaps", aspects=[ASPECT]), "enough_details is neither true nor false"),
        (said(enough_details=True, aspects=[ASPECT, "Price"]), "aspect 1 lacks 'aspect', 'evidence' or 'reason'"),
        (said(enough_details=True, aspects=[{**ASPECT, "evidence": " "}]), "aspect 0 lacks 'aspect'"),
        (said(enough_details=True, aspects=[{"aspect": "a", "evidence": "b"}]), "aspect 0 lacks 'aspect'"),
        (said(enough_details=True, aspects=[{**ASPECT, "aspect": "<title>"}]), "aspect 0 lacks 'aspect'"),
        (said(other=1), "no valid JSON object with aspects"),
    ],
)
def test_no_aspects(text, reason):
    parsed = parse_aspects(text)
    assert parsed.value is None and parsed.how == "none" and parsed.reason.startswith(reason)


def test_outputs_that_follow_the_schemas_are_parsed():
    assert NEEDS_SCHEMA["required"] == ["needs_personalization"]
    assert ASPECTS_SCHEMA["required"] == ["enough_details", "aspects"]
    item = ASPECTS_SCHEMA["properties"]["aspects"]["items"]
    assert item["required"] == list(ASPECT) and item["additionalProperties"] is False
