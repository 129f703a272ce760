"""Answers that must have a form, through the official OpenAI client: whatever the model would say, what comes fits.

QUARTET_SCHEMAS=300 tries so many schemas instead of 40.
"""

import json
import os
import random
import re

import jsonschema
import openai
import pydantic
import pytest

from conftest import serve

MODEL = "quartet-demo-exl3"
SCHEMAS = int(os.environ.get("QUARTET_SCHEMAS", "40"))
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
# The demo model reasons at length about what it does not know.
THINKING = {"thinking_token_budget": 24}

TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999},
                                         "b": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": ["a", "b"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "paint", "parameters": {
        "type": "object", "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"], "additionalProperties": False}}},
]


@pytest.fixture(scope="module")
def cluster():
    with serve(MODEL, 1) as running:
        yield running


@pytest.fixture(scope="module")
def plain_cluster():
    """Without speculation."""
    with serve(MODEL, 1, "--num-speculative-tokens", "0") as running:
        yield running


def client_of(cluster):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0)


@pytest.fixture
def client(cluster):
    with client_of(cluster) as made:
        yield made


# ---- schemas, all of which end ------------------------------------------------------------------


def scalar(rng):
    low = rng.randint(-500, 500)
    kinds = [
        {"type": "null"},
        {"type": "boolean"},
        {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 2000)},
        {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.randint(1, 50)},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 12)},
        {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]{3}$"},
        {"enum": ["red", "green", 3, None, {"deep": [1]}]},
        {"const": "Zürich"},
    ]
    return rng.choice(kinds)


def schema_of(rng, depth):
    if depth == 0 or rng.random() < 0.25:
        return scalar(rng)
    inner = lambda: schema_of(rng, depth - 1)  # noqa: E731
    kind = rng.randrange(5)
    if kind == 0:
        return {"type": "array", "items": inner(), "minItems": rng.randint(0, 2), "maxItems": 3}
    if kind == 1:
        return {"anyOf": [inner(), inner()]}
    if kind == 2:
        return {"type": "array", "prefixItems": [inner(), inner()], "items": False, "minItems": 2}
    keys = rng.sample(["name", "größe", "日本", "a b", 'q"uote', "emoji 😀", "n"], rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {key: inner() for key in keys},
        "required": [key for key in keys if rng.random() < 0.7],
        "additionalProperties": False,
    }


def recursive(rng):
    """A list of nodes or a tree, of which every branch ends by the limits of its lengths."""
    node = {
        "type": "object",
        "properties": {"v": scalar(rng), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "required": ["v", "next"],
        "additionalProperties": False,
    }
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}


def schema_number(index):
    rng = random.Random(index)
    if index % 10 == 9:
        return recursive(rng)
    return {
        "type": "object",
        "properties": {"x": schema_of(rng, 2), "y": schema_of(rng, 1)},
        "required": ["x", "y"],
        "additionalProperties": False,
    }


def json_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def ask(client, schema, **fields):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=700, response_format=json_format(schema), extra_body=THINKING,
        **fields)
    return answer.choices[0]


def check(choice, schema):
    """The answer fits; or, of a recursive schema alone, it did not come to its end."""
    if choice.finish_reason == "length" and "$ref" in schema:
        return False
    assert choice.finish_reason == "stop", choice.message.content
    value = json.loads(choice.message.content)
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    return True


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("speculation", [True, False], ids=["drafts", "plain"])
def test_answers_fit_their_schemas(request, temperature, speculation):
    whole = 0
    with client_of(request.getfixturevalue("cluster" if speculation else "plain_cluster")) as client:
        for index in range(SCHEMAS):
            schema = schema_number(index)
            try:
                whole += check(ask(client, schema, temperature=temperature, seed=index), schema)
            except Exception as error:
                raise AssertionError(f"schema {index}: {json.dumps(schema, ensure_ascii=False)}") from error
    assert whole >= 0.9 * SCHEMAS


def test_the_reasoning_is_free_and_comes_first(client):
    choice = ask(client, schema_number(0), temperature=0)
    assert choice.message.reasoning_content
    assert choice.message.content.lstrip().startswith("{")


def test_any_json_object(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=200, temperature=0, response_format={"type": "json_object"},
        extra_body=THINKING)
    assert answer.choices[0].message.content.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_choices_and_regular_expressions(client):
    for n in range(3):
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=80, seed=n,
            extra_body={**THINKING, "structured_outputs": {"choice": ["yes", "no", "perhaps"]}})
        assert answer.choices[0].message.content.strip() in ("yes", "no", "perhaps")
    answer = client.completions.create(
        model=MODEL, prompt="A date: ", max_tokens=40, extra_body={"guided_regex": r"\d{4}-\d{2}-\d{2}"})
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", answer.choices[0].text)


def test_each_choice_of_many_and_each_stream_fits(client):
    schema = schema_number(1)
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=700, n=3, temperature=1, response_format=json_format(schema),
        extra_body=THINKING)
    assert all(check(choice, schema) for choice in answer.choices)
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=700, stream=True, response_format=json_format(schema),
        extra_body=THINKING)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    jsonschema.validate(json.loads(text), schema)


class Step(pydantic.BaseModel):
    number: int = pydantic.Field(ge=0, le=99)
    done: bool


class Plan(pydantic.BaseModel):
    title: str = pydantic.Field(max_length=10)
    steps: list[Step] = pydantic.Field(max_length=2)


def test_pydantic_models_are_parsed(client):
    answer = client.beta.chat.completions.parse(
        model=MODEL, messages=QUESTION, max_tokens=400, response_format=Plan, extra_body=THINKING)
    plan = answer.choices[0].message.parsed
    assert isinstance(plan, Plan) and len(plan.steps) <= 2


def calls_of(answer):
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]


@pytest.mark.parametrize("temperature", [0, 1])
def test_required_and_named_calls_come_with_arguments_that_fit(client, temperature):
    def calls(choice):
        return calls_of(client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=300, temperature=temperature, seed=5, tools=TOOLS,
            tool_choice=choice, parallel_tool_calls=False, extra_body=THINKING))

    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    (name, arguments), = calls("required")
    jsonschema.validate(arguments, schemas[name])
    for name in schemas:
        (called, arguments), = calls({"type": "function", "function": {"name": name}})
        assert called == name
        jsonschema.validate(arguments, schemas[name])
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "paint"}}]}
    (called, arguments), = calls({"type": "allowed_tools", "allowed_tools": allowed})
    assert called == "paint"


def test_what_is_not_supported_is_named(client):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, {"type": "object", "propertyNames": {"pattern": "^a"}})
    assert raised.value.param == "response_format.json_schema.schema"
    assert "propertyNames" in raised.value.message


def test_a_limit_of_tokens_cuts_the_answer(client):
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 200}
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=60, response_format=json_format(schema), extra_body=THINKING)
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.choices[0].message.content)


def test_four_ranks_say_the_same(client):
    with serve(MODEL, 4) as four, client_of(four) as other:
        for index in range(5):
            schema = schema_number(index)
            one, two = (ask(each, schema, temperature=0).message for each in (client, other))
            assert one.content == two.content and one.reasoning_content == two.reasoning_content
