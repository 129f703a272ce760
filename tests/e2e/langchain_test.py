"""LangChain's chat model for OpenAI's API against a running cluster."""

import asyncio
import operator
import typing
from functools import reduce

import openai
import pydantic
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

from conftest import at_work, cancelled
from tool_cases import ANSWERED, CALLING, MODEL, by_name

QUESTION = "Which country has the capital Reykjavik?"
ANSWER = "Reykjavik is the capital of Iceland."
PROMPT_TOKENS = 17
ANSWER_TOKENS = 20  # reasoning, closing tag, answer and end token


@pytest.fixture
def make(cluster):
    def made(**fields):
        return ChatOpenAI(model=MODEL, base_url=cluster.http + "/v1", api_key="none", max_retries=0, **fields)

    return made


def calls_of(message):
    return [(call["name"], call["args"]) for call in message.tool_calls]


def test_chat(make):
    message = make().invoke(QUESTION)
    assert isinstance(message, AIMessage)
    assert message.content == ANSWER
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.response_metadata["model_name"] == MODEL
    assert message.usage_metadata["input_tokens"] == PROMPT_TOKENS
    assert message.usage_metadata["output_tokens"] == ANSWER_TOKENS
    assert message.usage_metadata["output_token_details"]["reasoning"] == 10


def test_a_stream_adds_up(make):
    chunks = list(make(stream_usage=True).stream(QUESTION))
    assert len(chunks) > 3
    message = reduce(operator.add, chunks)
    assert message.content == ANSWER
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.usage_metadata["output_tokens"] == ANSWER_TOKENS


def test_a_conversation_with_a_system_message(make):
    model = make()
    history = [SystemMessage("Be brief."), HumanMessage(QUESTION)]
    first = model.invoke(history)
    second = model.invoke([*history, first, HumanMessage("Thank you.")])
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]
    assert second.content


def test_a_batch_and_async(make):
    model = make()
    assert [message.content for message in model.batch([QUESTION] * 3)] == [ANSWER] * 3
    assert asyncio.run(model.ainvoke(QUESTION)).content == ANSWER


def test_stop(make):
    assert make().invoke(QUESTION, stop=[" capital"]).content == "Reykjavik is the"


@pytest.mark.parametrize("case", **by_name(CALLING))
def test_calls(make, case):
    message = make(reasoning_effort=case.effort).bind_tools(case.tools).invoke(case.question)
    assert calls_of(message) == case.calls
    assert message.invalid_tool_calls == []
    assert message.response_metadata["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("case", **by_name(CALLING))
def test_a_stream_adds_up_to_the_same_calls(make, case):
    message = reduce(operator.add, make(reasoning_effort=case.effort).bind_tools(case.tools).stream(case.question))
    assert calls_of(message) == case.calls
    assert message.response_metadata["finish_reason"] == "tool_calls"


# LangChain keeps no reasoning with its messages over chat completions; over responses it does.
@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
@pytest.mark.parametrize("case", **by_name(ANSWERED))
def test_results_go_back_and_are_answered(make, case, responses):
    model = make(use_responses_api=responses, reasoning_effort=case.effort).bind_tools(case.tools)
    message = model.invoke(case.question)
    assert calls_of(message) == case.calls
    results = [ToolMessage(result, tool_call_id=call["id"])
               for call, result in zip(message.tool_calls, case.results, strict=True)]
    answer = model.invoke([HumanMessage(case.question), message, *results])
    assert answer.tool_calls == []
    assert answer.text.strip()
    if responses:
        assert answer.usage_metadata["input_tokens"] == len(case.golden["input_ids"])
        assert answer.text == case.answer()[1]


class Paint(pydantic.BaseModel):
    colour: typing.Literal["red", "green"]
    dry: bool


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_a_pydantic_model_is_parsed(make, responses):
    model = make(use_responses_api=responses, max_tokens=200, extra_body={"thinking_token_budget": 24})
    assert isinstance(model.with_structured_output(Paint, method="json_schema").invoke(QUESTION), Paint)


def test_logprobs(make):
    entries = make(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert len(entries) == ANSWER_TOKENS
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_a_stream_that_is_closed_is_cancelled(make, cluster):
    with cancelled(cluster):
        chunks = make(max_tokens=3500, extra_body={"ignore_eos": True}).stream(QUESTION)
        next(chunks)
        assert at_work(cluster) > 0
        chunks.close()


def test_a_task_that_is_cancelled_cancels_its_request(make, cluster):
    # LangChain keeps a connection for the event loop that first used it; with another timeout it makes another.
    model = make(max_tokens=3500, timeout=99, extra_body={"ignore_eos": True})

    async def stream(seen):
        async for _ in model.astream(QUESTION):
            seen.set()

    async def read():
        seen = asyncio.Event()
        task = asyncio.create_task(stream(seen))
        first = asyncio.create_task(seen.wait())
        await asyncio.wait({task, first}, return_when=asyncio.FIRST_COMPLETED)
        assert seen.is_set(), await task
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with cancelled(cluster):
        asyncio.run(read())


def test_errors_keep_their_class(make):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        make(temperature=3).invoke(QUESTION)
