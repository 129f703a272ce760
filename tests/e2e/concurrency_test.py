"""Sixteen streams at once: each gets its own text, and those that leave free what they held."""

import concurrent.futures
import http.client
import json
import re
import time

import openai
import pytest

from conftest import golden_cases, serve

MODEL = "quartet-demo-exl3"
STREAMS = 16
TOKENS = 150


@pytest.fixture(scope="module")
def cluster():
    with serve(MODEL, 4, "--max-num-seqs", str(STREAMS)) as running:
        yield running


@pytest.fixture
def client(cluster):
    with openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=200) as made:
        yield made


def connect(cluster):
    return http.client.HTTPConnection(cluster.http.removeprefix("http://"), timeout=120)


def metrics(connection):
    """Steps so far, and places in use by pool."""
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    steps = re.search(r"^quartet_steps_total (\S+)$", text, re.M)
    used = dict(re.findall(r'^quartet_pool_used\{pool="([^"]+)"\} (\S+)$', text, re.M))
    assert steps and {"slots", "pages"} <= used.keys(), text
    return float(steps.group(1)), {pool: float(count) for pool, count in used.items()}


def wait_until(connection, condition):
    """Scrapes until the pools fulfil `condition`; the steps and pools of that scrape."""
    end = time.monotonic() + 60
    while True:
        steps, used = metrics(connection)
        if condition(used):
            return steps, used
        assert time.monotonic() < end, used


def prompts():
    return [case["prompt"] for case in golden_cases("prompts.json") if len(case["input_ids"]) < 100][:STREAMS]


# Sampling at a high temperature makes texts long and different; the seed makes them come again.
SAMPLING = {"temperature": 1.5, "top_p": 1, "seed": 11, "stream": True}


def stream_ids(client, prompt, on_first=lambda: None):
    ids = []
    for chunk in client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=TOKENS, **SAMPLING,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    ):
        if not ids:
            on_first()
        ids += getattr(chunk.choices[0], "token_ids", None) or []
    return ids


def open_stream(cluster, prompt):
    """A stream on a bare connection, read up to its first event."""
    connection = connect(cluster)
    body = {"prompt": prompt, "max_tokens": 20000, "ignore_eos": True, **SAMPLING}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200
    assert reply.readline().startswith(b"data: {")
    return reply


def test_streams_are_right_and_leaving_frees_places(cluster, client):
    assert len(set(prompts())) == STREAMS
    staying, leaving = prompts()[: STREAMS // 2], prompts()[STREAMS // 2 :]
    alone = [stream_ids(client, prompt) for prompt in staying]
    assert all(len(ids) == TOKENS for ids in alone)

    scraper = connect(cluster)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        to_drop = [open_stream(cluster, prompt) for prompt in leaving]
        together = [pool.submit(stream_ids, client, prompt) for prompt in staying]
        before, full = wait_until(scraper, lambda used: used["slots"] == STREAMS)
        for reply in to_drop:
            reply.close()
        after, left = wait_until(scraper, lambda used: used["slots"] <= STREAMS // 2)
        print(f"freed within {after - before:.0f} steps as seen from outside: {full} -> {left}")
        assert left["pages"] < full["pages"]
        assert after - before <= 2
        assert [future.result() for future in together] == alone
    wait_until(scraper, lambda used: not any(used.values()))
    scraper.close()


def test_all_sixteen_get_their_own_text(client):
    alone = [stream_ids(client, prompt) for prompt in prompts()]
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        together = list(pool.map(lambda prompt: stream_ids(client, prompt), prompts()))
    assert together == alone
    assert len({tuple(ids) for ids in together}) == STREAMS
