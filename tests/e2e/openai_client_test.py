"""The official OpenAI client against a running cluster."""

import asyncio
import concurrent.futures
import os
import signal

import httpx2
import openai
import pytest

from conftest import at_work, cancelled, golden_cases, serve
from faults_test import children

MODEL = "quartet-demo-exl3"
QUESTION = [{"role": "user", "content": "Which country has the capital Reykjavik?"}]
ANSWER = "Reykjavik is the capital of Iceland."
ANSWER_TOKENS = 20  # reasoning, closing tag, answer and end token
# An answer that takes long enough for all that happens meanwhile.
LONG = {"model": MODEL, "messages": QUESTION, "max_tokens": 3500, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def cluster():
    with serve(MODEL, 4) as running:
        yield running


@pytest.fixture
def client(cluster):
    # Without retries: an error must be seen as it is.
    with openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0) as made:
        yield made


def collect(stream):
    reasoning, content, finishes, usage = "", "", [], None
    for chunk in stream:
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            if choice.finish_reason:
                finishes.append(choice.finish_reason)
    return reasoning, content, finishes, usage


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].message.reasoning_content == ANSWER
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 17
    assert answer.usage.completion_tokens == ANSWER_TOKENS
    assert answer.usage.total_tokens == 17 + ANSWER_TOKENS
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.usage.completion_tokens_details.reasoning_tokens == 10


def test_chat_stream_equals_the_whole_answer(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    reasoning, content, finishes, usage = collect(stream)
    assert (reasoning, content, finishes) == (ANSWER, ANSWER, ["stop"])
    assert (usage.prompt_tokens, usage.completion_tokens) == (17, ANSWER_TOKENS)


def test_a_stream_without_include_usage_has_none(client):
    *_, usage = collect(client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True))
    assert usage is None


def test_the_stream_helper_accumulates(client):
    with client.chat.completions.stream(model=MODEL, messages=QUESTION) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER


def test_completion(client):
    case = golden_cases("prompts.json")[0]
    answer = client.completions.create(model=MODEL, prompt=case["prompt"], max_tokens=100)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == f"{ANSWER}</think>{ANSWER}"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == ANSWER_TOKENS


def test_completion_stream(client):
    case = golden_cases("prompts.json")[0]
    text, finishes = "", []
    for chunk in client.completions.create(model=MODEL, prompt=case["prompt"], max_tokens=100, stream=True):
        text += chunk.choices[0].text
        if chunk.choices[0].finish_reason:
            finishes.append(chunk.choices[0].finish_reason)
    assert text == f"{ANSWER}</think>{ANSWER}"
    assert finishes == ["stop"]


def test_completion_default_is_sixteen_tokens(client):
    case = golden_cases("prompts.json")[0]
    answer = client.completions.create(model=MODEL, prompt=case["prompt"])
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_several_prompts_and_echo(client):
    answer = client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=3, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith("one")
    assert answer.choices[1].text.startswith("two")


@pytest.mark.parametrize("stream", [False, True])
def test_stop(client, stream):
    result = client.chat.completions.create(model=MODEL, messages=QUESTION, stop=[" capital"], stream=stream)
    if stream:
        reasoning, content, finishes, _ = collect(result)
    else:
        message = result.choices[0].message
        reasoning, content, finishes = message.reasoning_content, message.content, [result.choices[0].finish_reason]
    assert reasoning == ANSWER, "stop strings are looked for in content only"
    assert content == "Reykjavik is the"
    assert finishes == ["stop"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_max_tokens(client, name):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, **{name: 12})
    assert answer.usage.completion_tokens == 12
    assert answer.choices[0].finish_reason == "length"
    assert ANSWER.startswith(answer.choices[0].message.content)


def test_seed(client):
    def sample(seed):
        answer = client.completions.create(
            model=MODEL, prompt="[gMASK]<sop><|user|>", max_tokens=40, temperature=2, top_p=1, seed=seed,
            extra_body={"ignore_eos": True},
        )
        return answer.choices[0].text

    first = sample(7)
    assert sample(7) == first
    assert {sample(seed) for seed in (8, 9, 10)} != {first}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(sample, [7] * 4)) == [first] * 4, "whatever runs beside it"


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    ("expected", "fields", "param"),
    [
        (openai.BadRequestError, {"temperature": 3}, "temperature"),
        (openai.BadRequestError, {"messages": []}, "messages"),
        (openai.BadRequestError, {"response_format": {"type": "xml"}}, "response_format"),
        (openai.BadRequestError, {"logit_bias": {"2048": 5}}, "logit_bias"),
        (openai.NotFoundError, {"model": "gpt-9"}, "model"),
        (
            openai.BadRequestError,
            {"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]},
            "messages[0].content[0].image_url",
        ),
    ],
)
def test_errors_have_their_class_and_name_the_field(client, expected, fields, param):
    with pytest.raises(expected) as raised:
        client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **fields})
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"


def test_too_long_a_prompt(client):
    limit = client.models.retrieve(MODEL).max_model_len
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=limit)
    assert raised.value.code == "context_length_exceeded"
    assert str(limit) in raised.value.message and "17" in raised.value.message


def test_unknown_paths_are_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="x")


@pytest.mark.parametrize(
    ("expected", "status", "request_of"),
    [
        (openai.InternalServerError, 504, lambda client: client.chat.completions.create(
            extra_headers={"X-Request-Deadline-Ms": "1000"}, **LONG)),
        (openai.APIStatusError, 405, lambda client: client.get("/chat/completions", cast_to=object)),
        (openai.APIStatusError, 415, lambda client: client.post(
            "/chat/completions", body={}, cast_to=object, options={"headers": {"Content-Type": "text/plain"}})),
    ],
    ids=["deadline", "method", "type"],
)
def test_other_errors_keep_their_status(client, expected, status, request_of):
    with pytest.raises(expected) as raised:
        request_of(client)
    assert raised.value.status_code == status
    assert raised.value.message
    assert raised.value.request_id


# ---- clients that go away


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_waits_no_longer_cancels_its_request(client, cluster, stream):
    """Its answer does not come in time: a worker has stopped."""
    impatient = client.with_options(timeout=httpx2.Timeout(60, read=3))
    worker = children(cluster.process.pid, "quartet-shard-worker")[0]
    with cancelled(cluster):
        chunks = iter(impatient.chat.completions.create(stream=True, **LONG)) if stream else None
        if stream:
            next(chunks)
        os.kill(worker, signal.SIGSTOP)
        try:
            with pytest.raises(openai.APITimeoutError):
                if stream:
                    for _ in chunks:
                        pass
                else:
                    impatient.chat.completions.create(**LONG)
        finally:
            os.kill(worker, signal.SIGCONT)
    assert client.chat.completions.create(model=MODEL, messages=QUESTION).choices[0].message.content == ANSWER


def test_a_timeout_around_a_stream_cancels_the_request(cluster):
    async def read():
        received = 0
        async with openai.AsyncOpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0) as made:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as limit, await made.chat.completions.create(stream=True, **LONG) as chunks:
                    async for _ in chunks:
                        if received == 0:
                            limit.reschedule(asyncio.get_running_loop().time() + 0.2)
                        received += 1
        return received

    with cancelled(cluster):
        assert asyncio.run(read()) > 0


def test_streams_that_are_closed_are_cancelled_and_do_not_disturb_others(client, cluster):
    with cancelled(cluster, 3):
        streams = [client.chat.completions.create(stream=True, **LONG) for _ in range(3)]
        for stream in streams:
            next(iter(stream))
        assert at_work(cluster) > 0
        assert client.chat.completions.create(model=MODEL, messages=QUESTION).choices[0].message.content == ANSWER
        for stream in streams:
            stream.close()
    assert client.chat.completions.create(model=MODEL, messages=QUESTION).choices[0].message.content == ANSWER
