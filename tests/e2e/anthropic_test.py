"""The official Anthropic client against a running cluster."""

import os
import re
import signal
import typing

import anthropic
import httpx2
import pydantic
import pytest

from conftest import cancelled
from faults_test import children
from tool_cases import ANSWERED, CALLING, MODEL, PARALLEL, by_name

QUESTION = [{"role": "user", "content": "Which country has the capital Reykjavik?"}]
ANSWER = "Reykjavik is the capital of Iceland."
PROMPT_TOKENS = 17
ANSWER_TOKENS = 20  # reasoning, closing tag, answer and end token


@pytest.fixture
def client(cluster):
    # Without retries: an error must be seen as it is.
    with anthropic.Anthropic(base_url=cluster.http, api_key="none", max_retries=0) as made:
        yield made


def ask(client, **fields):
    return client.messages.create(**{"model": MODEL, "max_tokens": 200, "messages": QUESTION, **fields})


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def tool_request(case, **more):
    tools = [{"name": tool["function"]["name"], "description": tool["function"]["description"],
              "input_schema": tool["function"]["parameters"]} for tool in case.tools]
    return {"tools": tools, "messages": [{"role": "user", "content": case.question}],
            "output_config": {"effort": case.effort}, **more}


def calls_of(message):
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


def test_a_message(client):
    message = ask(client)
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert re.fullmatch("msg_[A-Za-z0-9]{24}", message.id)
    thinking, text = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", ANSWER)
    assert thinking.signature
    assert (text.type, text.text) == ("text", ANSWER)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert prompt_tokens(message.usage) == PROMPT_TOKENS
    assert message.usage.output_tokens == ANSWER_TOKENS
    assert message.usage.output_tokens_details.thinking_tokens == 10
    assert message._request_id


def test_a_stream_equals_the_whole_message(client):
    with client.messages.stream(model=MODEL, max_tokens=200, messages=QUESTION) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == ANSWER
    whole = ask(client)
    assert [block.to_dict() for block in message.content] == [block.to_dict() for block in whole.content]
    assert (message.stop_reason, message.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert prompt_tokens(message.usage) == PROMPT_TOKENS
    assert message.usage.output_tokens == ANSWER_TOKENS


def test_the_events_of_a_stream(client):
    types = [event.type for event in ask(client, stream=True) if event.type != "content_block_delta"]
    assert types == ["message_start", *["content_block_start", "content_block_stop"] * 2, "message_delta", "message_stop"]


def test_a_system_prompt_is_a_string_or_blocks(client):
    blocks = [{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "."}]
    used = {prompt_tokens(ask(client, system=system).usage) for system in ("Be brief.", blocks)}
    chat = [{"role": "system", "content": "Be brief."}, *QUESTION]
    used |= {client.messages.count_tokens(model=MODEL, messages=chat).input_tokens}
    assert len(used) == 1 and used.pop() > PROMPT_TOKENS


@pytest.mark.parametrize(
    ("thinking", "types"),
    [
        ({"type": "adaptive"}, ["thinking", "text"]),
        ({"type": "adaptive", "display": "omitted"}, ["thinking", "text"]),
        ({"type": "disabled"}, ["text"]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_thinking(client, thinking, types, stream):
    fields = {"model": MODEL, "max_tokens": 200, "messages": QUESTION, "thinking": thinking}
    if stream:
        with client.messages.stream(**fields) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**fields)
    assert [block.type for block in message.content] == types
    assert ANSWER in message.content[-1].text
    if types[0] == "thinking":
        assert message.content[0].thinking == ("" if "display" in thinking else ANSWER)
        assert message.content[0].signature


def test_thoughts_go_back_and_the_prefix_is_the_same(client):
    first = ask(client)
    messages = [*QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": "Thank you."}]
    with_thoughts = client.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    messages[1]["content"] = first.content[1:]
    without = client.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    assert with_thoughts - without == first.usage.output_tokens_details.thinking_tokens - 1, "all but the closing tag"
    messages[1]["content"] = [{"type": "redacted_thinking", "data": "AAAA"}, *first.content[1:]]
    assert client.messages.count_tokens(model=MODEL, messages=messages).input_tokens == without


@pytest.mark.parametrize("case", **by_name(CALLING))
@pytest.mark.parametrize("stream", [False, True])
def test_calls(client, case, stream):
    fields = {"model": MODEL, "max_tokens": 200, **tool_request(case)}
    if stream:
        with client.messages.stream(**fields) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**fields)
    assert calls_of(message) == case.calls
    assert [block.type for block in message.content] == ["thinking"] + ["tool_use"] * len(case.calls)
    ids = [block.id for block in message.content[1:]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch("toolu_[A-Za-z0-9]{24}", id) for id in ids)
    assert message.stop_reason == "tool_use"
    if not case.results:
        assert prompt_tokens(message.usage) == len(case.golden["input_ids"])
        assert message.usage.output_tokens == len(case.golden["output_ids"])


@pytest.mark.parametrize("case", **by_name(ANSWERED))
def test_results_go_back_and_are_answered(client, case):
    request = tool_request(case)
    message = ask(client, **request)
    uses = [block for block in message.content if block.type == "tool_use"]
    # Results are put into the order of the calls.
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": result}]}
               for use, result in zip(uses, case.results, strict=True)]
    request["messages"] += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results[::-1]}]
    answer = ask(client, **request)
    # The same prompt as that of the reference, token for token: the message came back as it went out.
    assert prompt_tokens(answer.usage) == len(case.golden["input_ids"])
    assert [block.thinking if block.type == "thinking" else block.text for block in answer.content] == case.answer()
    assert answer.stop_reason == "end_turn"


@pytest.mark.parametrize("case", **by_name(PARALLEL))
def test_without_parallel_use_there_is_one(client, case):
    message = ask(client, **tool_request(case, tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    assert calls_of(message) == case.calls[:1]
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences(client, stream):
    fields = {"model": MODEL, "max_tokens": 200, "messages": QUESTION, "stop_sequences": ["no such", " capital"]}
    if stream:
        with client.messages.stream(**fields) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**fields)
    assert [message.content[0].thinking, message.content[1].text] == [ANSWER, "Reykjavik is the"]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " capital")


def test_max_tokens(client):
    message = ask(client, max_tokens=12)
    assert message.usage.output_tokens == 12
    assert message.stop_reason == "max_tokens"
    assert ANSWER.startswith(message.content[-1].text)


def test_the_last_message_is_continued(client):
    begun, rest = ANSWER[:len("Reykjavik is the")], ANSWER[len("Reykjavik is the"):]
    message = ask(client, messages=[*QUESTION, {"role": "assistant", "content": begun}])
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == rest


@pytest.mark.parametrize("case", [None, *CALLING[:2]], ids=lambda case: case.name if case else "plain")
def test_tokens_are_counted_as_they_are_used(client, case):
    request = tool_request(case) if case else {"messages": QUESTION}
    count = client.messages.count_tokens(model=MODEL, system="Be brief.", **request)
    usage = ask(client, system="Be brief.", **request).usage
    assert count.input_tokens == prompt_tokens(usage)
    assert prompt_tokens(ask(client, system="Be brief.", **request).usage) == count.input_tokens, "cached or not"


@pytest.mark.parametrize(
    ("expected", "fields", "message"),
    [
        (anthropic.BadRequestError, {"extra_body": {"temperature": 1.5}}, "temperature: must be a number from 0 to 1"),
        (anthropic.BadRequestError, {"messages": []}, "messages: must be a list"),
        (anthropic.BadRequestError, {"stop_sequences": [""]}, "stop_sequences[0]: must not be empty"),
        (anthropic.NotFoundError, {"model": "claude-9"}, "the model 'claude-9' does not exist"),
        (
            anthropic.BadRequestError,
            {"messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]}]},
            "messages[0].content[0]: images are not supported",
        ),
    ],
)
def test_errors_have_their_class_and_name_the_field(client, expected, fields, message):
    with pytest.raises(expected) as raised:
        ask(client, **fields)
    assert raised.value.body["type"] == "error"
    assert message in raised.value.body["error"]["message"]
    kind = "not_found_error" if expected is anthropic.NotFoundError else "invalid_request_error"
    assert raised.value.body["error"]["type"] == kind


def test_a_prompt_that_is_too_long(client):
    with pytest.raises(anthropic.BadRequestError) as raised:
        ask(client, max_tokens=1_000_000, stream=True)
    assert "17 tokens" in str(raised.value)


@pytest.mark.parametrize(
    ("status", "request_of"),
    [
        (405, lambda client: client.get("/v1/messages", cast_to=object)),
        (415, lambda client: client.post(
            "/v1/messages", body={}, cast_to=object, options={"headers": {"Content-Type": "text/plain"}})),
    ],
    ids=["method", "type"],
)
def test_other_errors_keep_their_status(client, status, request_of):
    with pytest.raises(anthropic.APIStatusError) as raised:
        request_of(client)
    assert raised.value.status_code == status
    assert raised.value.body["error"]["type"] == "invalid_request_error"
    assert raised.value.body["error"]["message"]


def test_models(client):
    listed, = client.models.list()
    assert (listed.id, listed.type, listed.display_name) == (MODEL, "model", MODEL)
    assert listed.created_at.year >= 2026
    assert client.models.retrieve(MODEL) == listed
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude-9")


class Paint(pydantic.BaseModel):
    colour: typing.Literal["red", "green"]
    dry: bool


def test_a_pydantic_model_is_parsed(client):
    message = client.messages.parse(model=MODEL, max_tokens=200, messages=QUESTION, output_format=Paint,
                                    thinking={"type": "enabled", "budget_tokens": 24})
    assert isinstance(message.parsed_output, Paint)
    assert message.stop_reason == "end_turn"


# Long enough that its prefill takes longer than leaving.
LONG = {"model": MODEL, "max_tokens": 2000, "messages": [{"role": "user", "content": "word " * 1500}]}


# In mid-stream this client hands on what its transport raises.
@pytest.mark.parametrize(("stream", "error"), [(False, anthropic.APITimeoutError), (True, httpx2.ReadTimeout)])
def test_a_client_that_waits_no_longer_cancels_its_request(client, cluster, stream, error):
    """Its answer does not come in time: a worker has stopped."""
    impatient = client.with_options(timeout=httpx2.Timeout(60, read=3))
    worker = children(cluster.process.pid, "quartet-shard-worker")[0]
    with cancelled(cluster):
        events = iter(impatient.messages.create(stream=True, **LONG)) if stream else None
        if stream:
            next(events)
        os.kill(worker, signal.SIGSTOP)
        try:
            with pytest.raises(error):
                if stream:
                    for _ in events:
                        pass
                else:
                    impatient.messages.create(**LONG)
        finally:
            os.kill(worker, signal.SIGCONT)
    assert ask(client).content[-1].text == ANSWER


def test_streams_that_are_closed_are_cancelled(client, cluster):
    with cancelled(cluster, 3):
        for _ in range(3):
            with client.messages.stream(**LONG) as stream:
                next(iter(stream))
    assert ask(client).content[-1].text == ANSWER
