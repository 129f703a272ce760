"""The prefix cache over HTTP: what was computed once is not computed again, and changes no token."""

import concurrent.futures
import re
import urllib.request

import openai
import pytest

from conftest import golden_cases, serve

MODEL = "quartet-demo-exl3"
UNIT = 256


def needle():
    return max(golden_cases("prompts.json"), key=lambda case: len(case["input_ids"]))


def ask(cluster, prompt, tokens, **extra):
    with openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=tokens, extra_body={"return_token_ids": True, **extra})
    return answer.choices[0].token_ids, answer.usage.prompt_tokens_details.cached_tokens


def counters(cluster):
    text = urllib.request.urlopen(cluster.http + "/metrics").read().decode()
    return {name: float(value) for name, value in
            re.findall(r"^vllm:prefix_cache_(queries|hits)_total\{[^}]*\} (\S+)$", text, re.M)}


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_long_prompt_is_computed_once(ranks):
    case = needle()
    length = len(case["input_ids"])
    assert length > 2304
    with serve(MODEL, ranks) as cluster:
        first, none_cached = ask(cluster, case["prompt"], len(case["output_ids"]) + 20)
        second, cached = ask(cluster, case["prompt"], len(case["output_ids"]) + 20)
        seen = counters(cluster)
    assert none_cached == 0
    assert cached == (length - 1) // UNIT * UNIT
    assert first == second == case["output_ids"]
    assert seen == {"queries": 2 * length, "hits": cached}


def test_a_conversation_that_goes_on_begins_where_it_was():
    case = needle()
    with serve(MODEL, 1) as cluster, serve(MODEL, 1, "--no-prefix-caching") as plain:
        ask(cluster, case["prompt"], 1)
        longer = case["prompt"] + case["text"] + " And then? " * 60
        text, cached = ask(cluster, longer, 40)
        expected, none_cached = ask(plain, longer, 40)
    assert text == expected
    assert cached == (len(case["input_ids"]) - 1) // UNIT * UNIT
    assert none_cached == 0


def test_identical_prompts_at_once_are_computed_once():
    case = needle()
    length, at_once, said = len(case["input_ids"]), 6, 8
    usable = (length - 1) // UNIT * UNIT
    with serve(MODEL, 1, "--max-num-seqs", str(at_once)) as cluster:
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            answers = list(pool.map(lambda _: ask(cluster, case["input_ids"], said), range(at_once)))
        seen = counters(cluster)
    cached = sorted(cached for _, cached in answers)
    print(f"{at_once} prompts of {length} tokens at once: {int(seen['queries'] - seen['hits'])} tokens computed")
    assert cached == [0] + [usable] * (at_once - 1)
    assert seen == {"queries": at_once * length, "hits": (at_once - 1) * usable}
    assert all(tokens == case["output_ids"][:said] for tokens, _ in answers)


def test_an_answer_is_not_computed_again_as_a_part_of_the_next_prompt():
    case = needle()
    said = 300
    with serve(MODEL, 1) as cluster, serve(MODEL, 1, "--no-prefix-caching") as plain:
        answer, _ = ask(cluster, case["input_ids"], said, ignore_eos=True)
        longer = case["input_ids"] + answer + case["input_ids"][:50]
        text, cached = ask(cluster, longer, 40)
        expected, _ = ask(plain, longer, 40)
    assert len(answer) == said
    # The answer's last token was never absorbed.
    assert cached == (len(case["input_ids"]) + said - 1) // UNIT * UNIT
    assert text == expected


def test_conversations_with_one_system_prompt_share_it_from_the_second_on():
    """Nobody has seen where they part when the first is computed; the gateway says where the system prompt ends."""
    system = "Answer in one word. " * 100
    rest = "I ask you this because my neighbour would not say. " * 20
    with serve(MODEL, 1) as cluster:
        with openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=300) as client:
            cached = [client.chat.completions.create(
                model=MODEL, max_tokens=2,
                messages=[{"role": "system", "content": system},
                          {"role": "user", "content": f"{first}: {rest}"}],
            ).usage.prompt_tokens_details.cached_tokens for first in ("Ann", "Bob", "Eve")]
            alone = client.chat.completions.create(
                model=MODEL, max_tokens=1, messages=[{"role": "system", "content": system},
                                                     {"role": "user", "content": ""}]).usage.prompt_tokens
    assert alone > UNIT
    # Everything behind the prompt: a turn for the user and the beginning of the answer.
    assert cached == [0] + 2 * [(alone - 3) // UNIT * UNIT]
