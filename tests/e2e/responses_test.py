"""The responses API of the official OpenAI client against a running cluster."""

import json
import re
import typing

import openai
import pydantic
import pytest

from conftest import cancelled
from tool_cases import ANSWERED, CALLING, MODEL, PARALLEL, by_name

QUESTION = "Which country has the capital Reykjavik?"
ANSWER = "Reykjavik is the capital of Iceland."
PROMPT_TOKENS = 17
ANSWER_TOKENS = 20  # reasoning, closing tag, answer and end token


def tool_request(case, **more):
    return {"model": MODEL, "tools": [{"type": "function", **tool["function"]} for tool in case.tools],
            "input": [{"role": "user", "content": case.question}], "reasoning": {"effort": case.effort}, **more}


def calls_of(response):
    return [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]


def reasoning_of(response):
    return "".join(part.text for item in response.output if item.type == "reasoning" for part in item.content)


@pytest.mark.parametrize("form", [QUESTION, [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]],
                         ids=["text", "items"])
def test_a_response(client, form):
    response = client.responses.create(model=MODEL, input=form)
    assert (response.object, response.status, response.model) == ("response", "completed", MODEL)
    assert response.error is None and response.incomplete_details is None
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert reasoning_of(response) == ANSWER
    assert response.output_text == ANSWER
    assert response.usage.input_tokens == PROMPT_TOKENS
    assert response.usage.output_tokens == ANSWER_TOKENS
    assert response.usage.total_tokens == PROMPT_TOKENS + ANSWER_TOKENS
    assert response.usage.output_tokens_details.reasoning_tokens == 10
    assert response.store is False


def test_a_stream_equals_the_whole_response(client):
    deltas = {"response.reasoning_text.delta": "", "response.output_text.delta": ""}
    numbers = []
    with client.responses.stream(model=MODEL, input=QUESTION) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type in deltas:
                deltas[event.type] += event.delta
        response = stream.get_final_response()
    assert list(deltas.values()) == [ANSWER, ANSWER]
    assert numbers == list(range(len(numbers)))
    assert (response.status, response.output_text, reasoning_of(response)) == ("completed", ANSWER, ANSWER)
    assert (response.usage.input_tokens, response.usage.output_tokens) == (PROMPT_TOKENS, ANSWER_TOKENS)


def test_the_events_of_a_stream(client):
    types = [event.type for event in client.responses.create(model=MODEL, input=QUESTION, stream=True)
             if not event.type.endswith(".delta")]
    item = lambda kind: ["response.output_item.added", "response.content_part.added", f"response.{kind}.done",
                         "response.content_part.done", "response.output_item.done"]
    assert types == ["response.created", "response.in_progress", *item("reasoning_text"), *item("output_text"),
                     "response.completed"]


def test_instructions_are_a_system_message(client):
    response = client.responses.create(model=MODEL, input=QUESTION, instructions="Be brief.")
    chat = client.chat.completions.create(model=MODEL, messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}])
    assert response.usage.input_tokens == chat.usage.prompt_tokens > PROMPT_TOKENS
    assert response.output_text == chat.choices[0].message.content
    assert response.instructions == "Be brief."


def test_output_goes_back_as_input(client):
    first = client.responses.create(model=MODEL, input=QUESTION)
    history = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "Thank you."}]
    second = client.responses.create(model=MODEL, input=history)
    message = {"role": "assistant", "content": ANSWER, "reasoning_content": ANSWER}
    chat = client.chat.completions.create(model=MODEL, messages=[
        {"role": "user", "content": QUESTION}, message, {"role": "user", "content": "Thank you."}])
    assert second.usage.input_tokens == chat.usage.prompt_tokens
    assert second.output_text == chat.choices[0].message.content


@pytest.mark.parametrize("case", **by_name(CALLING))
@pytest.mark.parametrize("stream", [False, True])
def test_calls(client, case, stream):
    if stream:
        done = []
        with client.responses.stream(**tool_request(case)) as events:
            done = [event for event in events if event.type == "response.function_call_arguments.done"]
            response = events.get_final_response()
        assert [json.loads(event.arguments) for event in done] == [arguments for _, arguments in case.calls]
    else:
        response = client.responses.create(**tool_request(case))
    assert calls_of(response) == case.calls
    assert [item.type for item in response.output] == ["reasoning"] + ["function_call"] * len(case.calls)
    ids = [item.call_id for item in response.output[1:]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch("call_[A-Za-z0-9]{24}", id) for id in ids)
    assert response.status == "completed"
    if not case.results:
        assert response.usage.input_tokens == len(case.golden["input_ids"])
        assert response.usage.output_tokens == len(case.golden["output_ids"])


@pytest.mark.parametrize("case", **by_name(ANSWERED))
def test_results_go_back_and_are_answered(client, case):
    request = tool_request(case)
    response = client.responses.create(**request)
    request["input"] += response.output
    request["input"] += [
        {"type": "function_call_output", "call_id": item.call_id, "output": result}
        for item, result in zip((item for item in response.output if item.type == "function_call"), case.results, strict=True)
    ]
    answer = client.responses.create(**request)
    # The same prompt as that of the reference, token for token: the items came back as they went out.
    assert answer.usage.input_tokens == len(case.golden["input_ids"])
    assert [reasoning_of(answer), answer.output_text] == case.answer()


@pytest.mark.parametrize("case", **by_name(PARALLEL))
def test_without_parallel_calls_there_is_one(client, case):
    assert calls_of(client.responses.create(**tool_request(case, parallel_tool_calls=False))) == case.calls[:1]


def test_max_output_tokens(client):
    response = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=12)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[-1].status == "incomplete"
    assert response.usage.output_tokens == 12
    assert ANSWER.startswith(response.output_text)


@pytest.mark.parametrize(
    ("expected", "fields", "param"),
    [
        (openai.BadRequestError, {"temperature": 3}, "temperature"),
        (openai.BadRequestError, {"input": []}, "input"),
        (openai.BadRequestError, {"max_output_tokens": 0}, "max_output_tokens"),
        (openai.BadRequestError, {"previous_response_id": "resp_1"}, "previous_response_id"),
        (openai.BadRequestError, {"background": True}, "background"),
        (openai.BadRequestError, {"truncation": "auto"}, "truncation"),
        (openai.BadRequestError, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (openai.BadRequestError, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (openai.NotFoundError, {"model": "gpt-9"}, "model"),
        (
            openai.BadRequestError,
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]},
            "input[0].content[0].image_url",
        ),
    ],
)
def test_errors_have_their_class_and_name_the_field(client, expected, fields, param):
    with pytest.raises(expected) as raised:
        client.responses.create(**{"model": MODEL, "input": QUESTION, **fields})
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"


class Paint(pydantic.BaseModel):
    colour: typing.Literal["red", "green"]
    dry: bool


def test_a_pydantic_model_is_parsed(client):
    response = client.responses.parse(model=MODEL, input=QUESTION, text_format=Paint, max_output_tokens=200,
                                      extra_body={"thinking_token_budget": 24})
    assert isinstance(response.output_parsed, Paint)


def test_logprobs_are_those_of_a_chat(client):
    wanted = {"model": MODEL, "input": QUESTION, "include": ["message.output_text.logprobs"], "top_logprobs": 3}
    response = client.responses.create(**wanted)
    assert response.top_logprobs == 3
    entries = response.output[-1].content[0].logprobs
    assert "".join(entry.token for entry in entries) == ANSWER
    assert all(len(entry.top_logprobs) == 3 and entry.top_logprobs[0].token == entry.token for entry in entries)
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], logprobs=True, top_logprobs=3)
    # There the reasoning and the end token have theirs too.
    expected = chat.choices[0].logprobs.content[-1 - len(entries):-1]
    assert [entry.token for entry in entries] == [entry.token for entry in expected]
    assert [entry.logprob for entry in entries] == pytest.approx([entry.logprob for entry in expected], abs=1e-4)

    streamed, done = [], []
    for event in client.responses.create(stream=True, **wanted):
        if event.type == "response.output_text.delta":
            streamed += event.logprobs
        elif event.type == "response.output_text.done":
            done += event.logprobs
    for found in (streamed, done):
        assert [entry.token for entry in found] == [entry.token for entry in entries]
        assert [entry.logprob for entry in found] == pytest.approx([entry.logprob for entry in entries], abs=1e-4)


def test_streams_that_are_closed_are_cancelled_and_do_not_disturb_others(client, cluster):
    with cancelled(cluster, 3):
        for _ in range(3):
            with client.responses.create(model=MODEL, input="word " * 1500, stream=True,
                                         extra_body={"ignore_eos": True}) as stream:
                next(iter(stream))
    assert client.responses.create(model=MODEL, input=QUESTION).output_text == ANSWER
