"""/tokenize, /detokenize and /apply-template agree with what the engine is given."""

import httpx2
import pytest

from conftest import golden_cases, serve

MODEL = "quartet-demo-exl3"


@pytest.fixture(scope="module")
def client():
    with serve(MODEL, 1) as cluster, httpx2.Client(base_url=cluster.http, timeout=60) as made:
        yield made


def post(client, path, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_text_and_ids_go_both_ways(client):
    for case in golden_cases("prompts.json")[:20]:
        tokens = post(client, "/tokenize", prompt=case["prompt"])["tokens"]
        assert post(client, "/detokenize", tokens=tokens)["prompt"] == case["prompt"]
        assert post(client, "/detokenize", tokens=case["output_ids"])["prompt"] == case["text"]


def test_a_chat_counts_what_its_answer_says(client):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for fields in ({}, {"reasoning_effort": "low"}, {"tools": tools}):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|user|> you"}]
        counted = post(client, "/tokenize", messages=messages, **fields)
        answer = post(client, "/v1/chat/completions", messages=messages, max_tokens=1, return_token_ids=True, **fields)
        assert counted["count"] == answer["usage"]["prompt_tokens"] == len(counted["tokens"])
        rendered = post(client, "/apply-template", messages=messages, **fields)["prompt"]
        assert post(client, "/detokenize", tokens=counted["tokens"])["prompt"] == rendered


def test_token_strings_join_to_the_text(client):
    answer = post(client, "/tokenize", prompt="What is 4821 + 377?", return_token_strs=True)
    assert "".join(answer["token_strs"]) == "What is 4821 + 377?"
    assert len(answer["token_strs"]) == answer["count"] <= answer["max_model_len"]
