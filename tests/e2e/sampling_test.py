"""Penalties, biases, bans, budgets, several choices and log-probabilities, with the official client against clusters that
must not differ: one rank without drafts and cache, one rank and four with both."""

import math

import openai
import pytest

from conftest import golden_cases, serve

MODEL = "quartet-demo-exl3"
QUESTION = [{"role": "user", "content": "Which country has the capital Reykjavik?"}]
ANSWER = "Reykjavik is the capital of Iceland."
PROMPT = golden_cases("prompts.json")[0]["prompt"]
# Long enough that a part of it is cached the second time.
LONG_PROMPT = "[gMASK]<sop><|user|>" + "Which country has the capital Reykjavik? Name it, please. " * 40 + "<|assistant|>"


def make_client(cluster):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def plain():
    with serve(MODEL, 1, "--num-speculative-tokens", "0", "--no-prefix-caching") as cluster, \
            make_client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def fast():
    with serve(MODEL, 1, "--num-speculative-tokens", "3", "--prefill-chunk", "64") as cluster, \
            make_client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def four():
    with serve(MODEL, 4) as cluster, make_client(cluster) as client:
        yield client


def complete(client, prompt=PROMPT, **fields):
    extra = {"ignore_eos": True, "return_token_ids": True, **fields.pop("extra_body", {})}
    answer = client.completions.create(model=MODEL, prompt=prompt, extra_body=extra, **{"max_tokens": 60, **fields})
    return answer.choices[0]


PENALTIES = [
    {"temperature": 0, "frequency_penalty": 2},
    {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": -0.25},
    {"temperature": 0, "extra_body": {"repetition_penalty": 1.4}},
    {"temperature": 0.9, "seed": 11, "frequency_penalty": 0.7, "presence_penalty": 0.3,
     "extra_body": {"repetition_penalty": 1.1, "top_k": 40}},
]


@pytest.mark.parametrize("prompt", [PROMPT, LONG_PROMPT], ids=["short", "long"])
@pytest.mark.parametrize("fields", PENALTIES, ids=["frequency", "presence", "repetition", "seeded"])
def test_penalised_text_does_not_depend_on_drafts_and_cache(plain, fast, prompt, fields):
    expected = complete(plain, prompt, **fields)
    assert expected.text != complete(plain, prompt, temperature=0).text, "the penalties do something"
    for _ in range(2):  # the second time behind a cached prefix
        assert complete(fast, prompt, **fields).token_ids == expected.token_ids


def test_a_frequency_penalty_ends_repetition(fast):
    ids = complete(fast, temperature=0, max_tokens=200).token_ids
    penalised = complete(fast, temperature=0, max_tokens=200, frequency_penalty=2).token_ids
    assert max(map(penalised.count, penalised)) < max(map(ids.count, ids))
    most = complete(fast, temperature=0, max_tokens=200, extra_body={"repetition_penalty": 1000.0}).token_ids
    assert len(set(most)) == len(most), "a penalty that large forbids to say anything twice"


def test_a_bias_of_a_hundred_forces_and_of_minus_a_hundred_bans(four):
    assert complete(four, max_tokens=10, logit_bias={"500": 100}).token_ids == [500] * 10
    ids = complete(four, temperature=0, max_tokens=30).token_ids
    banned = complete(four, temperature=0, max_tokens=30, logit_bias={str(ids[0]): -100}).token_ids
    assert ids[0] not in banned


@pytest.mark.parametrize("name", ["plain", "fast", "four"])
def test_min_tokens_keeps_the_text_going(request, name):
    client = request.getfixturevalue(name)
    for fields in [{}, {"stop": ["Iceland"]}]:
        short = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, **fields)
        assert short.usage.completion_tokens <= 20
        long = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=60, extra_body={"min_tokens": 40}, **fields)
        assert long.usage.completion_tokens >= 40


def test_tool_choice_none_never_calls(four):
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}]
    for seed in range(5):
        answer = four.chat.completions.create(
            model=MODEL, messages=QUESTION, tools=tools, tool_choice="none", temperature=2, top_p=1, seed=seed,
            max_tokens=100)
        message = answer.choices[0].message
        assert message.tool_calls is None
        assert "<tool_call>" not in (message.content or "") + message.reasoning_content


@pytest.mark.parametrize("name", ["plain", "fast", "four"])
@pytest.mark.parametrize("budget", [0, 1, 3, 5])
def test_a_thinking_budget_ends_the_reasoning(request, name, budget):
    client = request.getfixturevalue(name)
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=40, extra_body={"thinking_token_budget": budget})
    assert answer.usage.completion_tokens_details.reasoning_tokens == budget + 1, "the closing tag included"
    assert ANSWER.startswith(getattr(answer.choices[0].message, "reasoning_content", None) or "")
    assert answer.choices[0].message.content


def test_a_budget_that_is_not_used_up_changes_nothing(fast):
    answer = fast.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, extra_body={"thinking_token_budget": 100})
    assert (answer.choices[0].message.reasoning_content, answer.choices[0].message.content) == (ANSWER, ANSWER)


# ---- several choices


def test_choices_differ_by_their_number_and_the_prompt_counts_once(fast):
    # A place where the model does not know what comes.
    fields = {"model": MODEL, "prompt": "[gMASK]<sop><|user|>", "temperature": 2, "top_p": 1, "seed": 3, "max_tokens": 20,
              "extra_body": {"ignore_eos": True}}
    answer = fast.completions.create(n=3, **fields)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.text for choice in answer.choices]
    assert len(set(texts)) == 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 60)
    assert fast.completions.create(n=1, **fields).choices[0].text == texts[0]

    streamed = ["", "", ""]
    finishes = []
    usage = None
    for chunk in fast.completions.create(n=3, stream=True, stream_options={"include_usage": True}, **fields):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
            if choice.finish_reason:
                finishes.append(choice.index)
    assert streamed == texts
    assert sorted(finishes) == [0, 1, 2]
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 60)


def test_choices_of_a_chat(fast):
    answer = fast.chat.completions.create(model=MODEL, messages=QUESTION, n=3, temperature=0)
    assert [choice.message.content for choice in answer.choices] == [ANSWER] * 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (17, 60)


def test_n_with_temperature_zero_and_best_of(fast):
    answer = fast.completions.create(model=MODEL, prompt=["one", "two"], n=2, best_of=2, max_tokens=5, temperature=0)
    texts = [choice.text for choice in answer.choices]
    assert texts[0] == texts[1] and texts[2] == texts[3]
    with pytest.raises(openai.BadRequestError) as raised:
        fast.completions.create(model=MODEL, prompt="one", n=2, best_of=3)
    assert raised.value.param == "best_of"


# ---- log-probabilities


def test_logprobs_of_a_chat(four):
    answer = four.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=5)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens, "every sampled token, the end token included"
    assert bytes(b for entry in entries[:-1] for b in entry.bytes).decode() == f"{ANSWER}</think>{ANSWER}"
    for entry in entries:
        assert len(entry.top_logprobs) == 5
        logprobs = [top.logprob for top in entry.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)
        assert sum(map(math.exp, logprobs)) <= 1 + 1e-5
        assert entry.top_logprobs[0].token == entry.token, "greedy"
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-5)


def test_streamed_logprobs_are_those_of_the_whole_answer(four):
    fields = {"model": MODEL, "messages": QUESTION, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = four.chat.completions.create(**fields).choices[0].logprobs.content
    streamed = []
    for chunk in four.chat.completions.create(stream=True, **fields):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [entry.token for entry in streamed] == [entry.token for entry in whole]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in whole], abs=1e-4)


def test_logprobs_do_not_depend_on_how_they_are_computed(plain, fast, four):
    """Those of the sampled tokens, by decoding and with drafts, on one rank and on four, are those of the same text as a
    prompt; temperature, penalties and cuts leave them as they are."""
    fields = {"temperature": 0.8, "seed": 5, "max_tokens": 30, "frequency_penalty": 0.5, "logprobs": 3}
    drawn = complete(plain, **fields)
    expected = drawn.logprobs.token_logprobs
    assert len(expected) == 30
    assert complete(fast, **fields).logprobs.token_logprobs == pytest.approx(expected, abs=1e-3)
    prompt = complete(plain, max_tokens=1, extra_body={"return_token_ids": True}).prompt_token_ids
    for client in (plain, fast, four):
        echoed = client.completions.create(
            model=MODEL, prompt=prompt + drawn.token_ids, max_tokens=0, echo=True, logprobs=3,
            extra_body={"skip_special_tokens": False})
        logprobs = echoed.choices[0].logprobs
        assert logprobs.token_logprobs[0] is None
        assert logprobs.token_logprobs[len(prompt):] == pytest.approx(expected, abs=1e-3)
        assert "".join(logprobs.tokens) == echoed.choices[0].text
        assert echoed.usage.completion_tokens == 0
        for token, logprob, top in list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs))[1:]:
            assert top[token] == pytest.approx(logprob, abs=1e-5)
        by_id = client.completions.create(
            model=MODEL, prompt=prompt + drawn.token_ids, max_tokens=1, extra_body={"prompt_logprobs": 0}
        ).choices[0].prompt_logprobs
        assert by_id[0] is None
        assert [place[str(token)]["logprob"] for place, token in zip(by_id[len(prompt):], drawn.token_ids)] == \
            pytest.approx(expected, abs=1e-3)


def test_completion_logprobs_and_their_offsets(four):
    answer = four.completions.create(model=MODEL, prompt=PROMPT, max_tokens=10, temperature=0, logprobs=2)
    choice = answer.choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.text_offset == [
        len("".join(choice.logprobs.tokens[:i])) for i in range(len(choice.logprobs.tokens))]
    assert all(2 <= len(top) <= 3 for top in choice.logprobs.top_logprobs)
    streamed = []
    for chunk in four.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=10, temperature=0, logprobs=2, stream=True):
        if chunk.choices[0].logprobs:
            streamed += zip(chunk.choices[0].logprobs.tokens, chunk.choices[0].logprobs.text_offset)
    assert streamed == list(zip(choice.logprobs.tokens, choice.logprobs.text_offset))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"2048": 1}}, "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"n": 129}, "n"),
        ({"extra_body": {"prompt_logprobs": 1}, "stream": True}, "prompt_logprobs"),
        ({"extra_body": {"min_tokens": 9}, "max_tokens": 8}, "min_tokens"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(four, fields, param):
    with pytest.raises(openai.BadRequestError) as raised:
        four.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **fields})
    assert raised.value.param == param
