"""Compare the package's own check of the schema with jsonschema, and test the errors that it names."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mxpeak.cli.run_history import results_in
from mxpeak.records import read_json
from mxpeak.schema.check import compiled, mismatch
from tests.support.fuzzing import mutated_json
from tests.support.result_file import SCHEMA

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "recorded.json").read_text(encoding="utf-8"))


def is_integer(checker: Any, value: Any) -> bool:
    """Return whether a number is an integer in the files of this project: without a fraction, also without .0."""
    return isinstance(value, int) and not isinstance(value, bool)


STRICT = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer),
)
#: The schema of one result.
RESULT = STRICT({"$ref": "#/$defs/result", "$defs": SCHEMA["$defs"]})


def without_required(schema: Any) -> Any:
    """A schema in which every key may be absent."""
    if isinstance(schema, dict):
        return {name: without_required(one) for name, one in schema.items() if name != "required"}
    return [without_required(one) for one in schema] if isinstance(schema, list) else schema


LENIENT = STRICT({"$ref": "#/$defs/result", "$defs": without_required(SCHEMA["$defs"])})


@pytest.mark.parametrize("one", RECORDED["results"], ids=lambda one: str(one["benchmark"]))
def test_results_of_runs_match(one: Any) -> None:
    assert mismatch(one, "result") == ""
    jsonschema.Draft202012Validator(SCHEMA).validate({"schema": "mxpeak.results/1", "results": [one]})


def test_results_of_older_versions_and_other_machines_are_read() -> None:
    count = 0
    for path in sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json")):
        body = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(body, dict) and str(body.get("schema", "")).startswith("mxpeak.result"):
            count += len(results_in(path))
    assert count > 10


@pytest.mark.parametrize("benchmark", [str(one["benchmark"]) for one in RECORDED["results"]])
def test_mutated_results_match_exactly_when_jsonschema_says_so(benchmark: str) -> None:
    (one,) = (one for one in RECORDED["results"] if one["benchmark"] == benchmark)
    text, counts = json.dumps(one), [0, 0]
    for seed in range(150):
        try:
            body = read_json(mutated_json(text, random.Random(f"schema {benchmark} {seed}")))
        except ValueError:
            continue
        for complete, schema in ((True, RESULT), (False, LENIENT)):
            wrong = mismatch(body, "result", complete=complete)
            assert (wrong == "") == schema.is_valid(body), f"seed {seed}: {wrong}"
            counts[wrong == ""] += 1
    assert min(counts) > 20, "both kinds are there"


def test_the_definitions_of_a_series_are_checked_too() -> None:
    assert mismatch(RECORDED["study"], "study") == ""
    odd = copy.deepcopy(RECORDED["study"])
    odd["points"][0]["status"] = "fine"
    assert mismatch(odd, "study").startswith('points[0].status is "fine", not one of valid')


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"type": "integer"}, True, "it is true, not an integer"),
        ({"type": "integer"}, 8.0, "it is 8.0, not an integer"),
        ({"type": ["number", "null"]}, False, "it is false, not a number or null"),
        ({"type": "boolean"}, 1, "it is 1, not true or false"),
        ({"const": 1}, True, "it is true, not 1"),
        ({"enum": [0, "a"]}, False, "it is false, not one of 0, a"),
        ({"minimum": 0}, -1, "it is -1, less than 0"),
        ({"maximum": 1}, 1.5, "it is 1.5, more than 1"),
        ({"minItems": 2}, [1], "it has 1 items, fewer than 2"),
        ({"maxItems": 0}, [1], "it has 1 items, more than 0"),
        ({"required": ["a"]}, {}, "it has no a"),
        ({"pattern": "^a"}, "b", 'it is "b", which does not match ^a'),
        ({"properties": {"a": {"type": "null"}}}, {"a": 0}, "a is 0, not null"),
        ({"items": {"type": "string"}}, ["", 0], "[1] is 0, not a string"),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, {"a": 0, "b": 0}, "b is 0, not null"),
        ({"anyOf": [{"minimum": 0}, {"type": "null"}]}, -1, "it matches no alternative"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 0}]}, 1, "it matches 2 alternatives instead of one"),
        ({"if": {"type": "integer"}, "then": {"maximum": 1}}, 2, "it is 2, more than 1"),
        ({"allOf": [{}, {"maximum": 1}]}, 2, "it is 2, more than 1"),
    ],
)
def test_each_keyword_refuses_what_it_excludes_as_jsonschema_does(schema: Any, value: Any, said: str) -> None:
    assert compiled(schema, lambda name: lambda value, path: "")(value, "").startswith(said)
    assert not STRICT(schema).is_valid(value)


@pytest.mark.parametrize("name", SCHEMA["$defs"])
def test_every_definition_of_the_schema_uses_only_known_keywords(name: str) -> None:
    assert isinstance(mismatch({}, name), str)


def test_a_keyword_that_it_does_not_know_is_an_error() -> None:
    with pytest.raises(KeyError, match="multipleOf"):
        compiled({"multipleOf": 2}, lambda name: lambda value, path: "")
