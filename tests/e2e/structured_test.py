"""Answers that must have a form, through the official OpenAI client: whatever the model would say, what comes fits.

QUARTET_SCHEMAS=300 asks for all of the schemas, instead of a sample that is spread over them.
"""

import concurrent.futures
import json
import math
import os
import re

import jsonschema
import openai
import pydantic
import pytest

from conftest import serve
from schemas import longest, schema_number, validate, validate_beginning

MODEL = "quartet-demo-exl3"
SCHEMAS = 300
ASKED = int(os.environ.get("QUARTET_SCHEMAS", "20"))
# What has no limit of its own is cut after so many tokens.
CUT_AFTER = 150
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
# The demo model reasons at length about what it does not know.
BUDGET = 12
THINKING = {"thinking_token_budget": BUDGET}
# The tag that ends the reasoning, white space behind it, the end token.
AROUND = 8

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
    with serve(MODEL, 1, "--max-num-seqs", "8") as running:
        yield running


@pytest.fixture(scope="module")
def plain_cluster():
    """Without speculation."""
    with serve(MODEL, 1, "--max-num-seqs", "8", "--num-speculative-tokens", "0") as running:
        yield running


def client_of(cluster):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0)


@pytest.fixture
def client(cluster):
    with client_of(cluster) as made:
        yield made


def json_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def ask(client, schema, **fields):
    bound = longest(schema)
    max_tokens = BUDGET + AROUND + (CUT_AFTER if bound == math.inf else bound)
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=max_tokens, response_format=json_format(schema), extra_body=THINKING,
        **fields)
    return answer.choices[0]


def check(choice, schema):
    """The answer fits. It came to its end, unless there is no limit to its length: then its beginning fits."""
    content = choice.message.content
    if choice.finish_reason == "length" and longest(schema) == math.inf:
        validate_beginning(content, schema)
        return False
    assert choice.finish_reason == "stop", content
    validate(content, schema)
    assert len(content.lstrip().encode()) <= longest(schema)
    return True


def ask_and_check(client, index, **fields):
    schema = schema_number(index)
    try:
        choice = ask(client, schema, seed=index, **fields)
        return check(choice, schema), choice.message.content
    except Exception as error:
        raise AssertionError(f"schema {index}: {json.dumps(schema, ensure_ascii=False)}") from error


def test_answers_fit_their_schemas_greedy_and_drawn_with_and_without_speculation(cluster, plain_cluster):
    whole = {"greedy, drafts": 0, "greedy, plain": 0, "drawn, drafts": 0, "drawn, plain": 0}
    with client_of(cluster) as drafts, client_of(plain_cluster) as plain, \
            concurrent.futures.ThreadPoolExecutor(16) as pool:
        jobs = [[pool.submit(ask_and_check, client, index, temperature=temperature)
                 for temperature in (0, 1) for client in (drafts, plain)]
                for index in (i * 7 % SCHEMAS for i in range(ASKED))]  # 7: a few of each kind come first
        try:
            for done, four in enumerate(jobs, 1):
                answers = [job.result() for job in four]
                assert answers[0] == answers[1], "greedily the same is said with drafts and without"
                for name, (ended, _) in zip(whole, answers):
                    whole[name] += ended
                if done % 20 == 0:
                    print(f"of {done} schemas answers came to their end: {whole}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)


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


@pytest.mark.parametrize("keyword, value", [
    ("$anchor", "a"), ("$dynamicRef", "#a"), ("$dynamicAnchor", "a"), ("not", {}), ("if", {}), ("then", {}), ("else", {}),
    ("dependentSchemas", {}), ("dependentRequired", {}), ("patternProperties", {}), ("propertyNames", {}),
    ("unevaluatedItems", False), ("unevaluatedProperties", False), ("contains", {}), ("minContains", 1),
    ("maxContains", 1), ("multipleOf", 2), ("uniqueItems", True), ("minProperties", 1),
    ("oneOf", [{"type": "integer"}, {"type": "number"}]), ("$ref", "https://example.com/schema"),
])
def test_what_is_not_supported_is_named(client, keyword, value):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, {"type": "object", "properties": {"p": {keyword: value}}})
    assert raised.value.param == "response_format.json_schema.schema"
    assert keyword in raised.value.message and "#/properties/p" in raised.value.message


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
