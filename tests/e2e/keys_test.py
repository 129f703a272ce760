"""API keys against a running cluster: the official client, raw HTTP, gRPC and the access log."""

import subprocess
import time

import anthropic
import grpc
import httpx2
import openai
import pytest

from conftest import BIN, serve

MODEL = "quartet-demo-exl3"
SERVICE = "quartet.v1.Inference"
KEYS = {name: f"key-of-{name}-0123456789" for name in ("ann", "bob", "cat", "dan")}
LIMITS = {"bob": "requests-per-minute=2", "cat": "requests-per-minute=1", "dan": "tokens=400"}
QUESTION = [{"role": "user", "content": "Which country has the capital Reykjavik?"}]


def key_line(name, key):
    made = subprocess.run([BIN / "quartet", "key", name], input=key + "\n", capture_output=True, text=True, check=True)
    return made.stdout.strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys").write_text("".join(f"{key_line(name, key)} {LIMITS.get(name, '')}\n" for name, key in KEYS.items()))
    flags = ["--api-key-file", str(folder / "keys"), "--cors-allow-origin", "https://app.example", "--log-dir",
             str(folder), "--log-level", "debug"]
    with serve(MODEL, 1, *flags) as running:
        running.log = folder / "gateway.log"
        running.keys = folder / "keys"
        yield running


def client_of(cluster, key):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key=key, max_retries=0)


def test_a_known_key_is_served(cluster):
    with client_of(cluster, KEYS["ann"]) as client:
        answer = client.chat.completions.create(model=MODEL, messages=QUESTION)
        assert answer.choices[0].message.content == "Reykjavik is the capital of Iceland."
        assert [model.id for model in client.models.list()] == [MODEL]


def test_an_unknown_key_is_an_authentication_error(cluster):
    with client_of(cluster, "key-of-eve-0123456789") as client, pytest.raises(openai.AuthenticationError) as raised:
        client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert raised.value.code == "invalid_api_key"
    assert raised.value.response.headers["x-request-id"].startswith("req_")


def test_a_key_has_the_limits_of_its_line(cluster):
    with client_of(cluster, KEYS["bob"]) as client:
        for _ in range(2):
            client.completions.create(model=MODEL, prompt="hi", max_tokens=1)
        with pytest.raises(openai.RateLimitError) as raised:
            client.completions.create(model=MODEL, prompt="hi", max_tokens=1)
    assert 1 <= int(raised.value.response.headers["retry-after"]) <= 30


def test_the_tokens_that_requests_of_a_key_may_need_at_a_time_are_limited(cluster):
    request = {"model": MODEL, "prompt": "hi", "max_tokens": 300, "extra_body": {"ignore_eos": True}}
    with client_of(cluster, KEYS["dan"]) as client:
        with client.completions.create(stream=True, **request) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError, match="400 tokens of requests at a time"):
                client.completions.create(**request)
            for _ in stream:
                pass
        assert client.completions.create(**request).usage.completion_tokens == 300


def test_anthropics_client_has_classes_of_its_own_for_the_same(cluster):
    def ask(key):
        with anthropic.Anthropic(base_url=cluster.http, api_key=key, max_retries=0) as client:
            return client.messages.create(model=MODEL, max_tokens=1, messages=QUESTION)

    with pytest.raises(anthropic.AuthenticationError) as raised:
        ask("key-of-eve-0123456789")
    assert raised.value.body["error"]["type"] == "authentication_error"
    ask(KEYS["cat"])
    with pytest.raises(anthropic.RateLimitError) as raised:
        ask(KEYS["cat"])
    assert raised.value.body["error"]["type"] == "rate_limit_error"
    assert int(raised.value.response.headers["retry-after"]) >= 1


def test_keys_come_and_go_with_their_file(cluster):
    def known(key):
        answer = httpx2.get(cluster.http + "/v1/models", headers={"x-api-key": key})
        assert answer.status_code in (200, 401)
        return answer.status_code == 200

    def write(text):
        following = cluster.keys.with_suffix(".next")
        following.write_text(text)
        following.rename(cluster.keys)

    before = cluster.keys.read_text()
    fay = "key-of-fay-0123456789"
    assert not known(fay)
    write(before + key_line("fay", fay) + "\n")
    while not known(fay):
        pass
    write("no key at all\n")
    while "stay in force" not in cluster.log.read_text():
        pass
    assert known(fay) and known(KEYS["ann"])
    write(before)
    while known(fay):
        pass
    assert known(KEYS["ann"])


def test_what_says_how_the_server_is_asks_for_no_key(cluster):
    for path in ("/livez", "/readyz", "/health", "/metrics", "/version", "/openapi.json", "/docs"):
        assert httpx2.get(cluster.http + path).status_code == 200
    assert httpx2.get(cluster.http + "/v1/models").status_code == 401
    assert httpx2.post(cluster.http + "/tokenize", json={"prompt": "hi"}).status_code == 401
    assert httpx2.post(cluster.http + "/tokenize", json={"prompt": "hi"},
                       headers={"x-api-key": KEYS["ann"]}).status_code == 200


def test_a_page_of_an_allowed_origin_may_ask(cluster):
    preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}
    answer = httpx2.options(cluster.http + "/v1/chat/completions", headers=preflight)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    answer = httpx2.get(cluster.http + "/v1/models", headers={"Origin": "https://app.example"})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


def test_grpc_takes_the_same_keys(cluster):
    with grpc.insecure_channel(cluster.grpc) as channel:
        model = channel.unary_unary(f"/{SERVICE}/GetModel")
        with pytest.raises(grpc.RpcError) as raised:
            model(b"", timeout=20)
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert MODEL.encode() in model(b"", timeout=20, metadata=[("authorization", f"Bearer {KEYS['ann']}")])


def test_our_own_clients_have_their_key_from_the_environment(cluster):
    command = [BIN / "quartet", "chat", "--url", cluster.http, "--max-tokens", "1"]
    refused = subprocess.run(command, input="hi\n", capture_output=True, text=True, env={})
    assert refused.returncode == 1 and "401" in refused.stderr
    served = subprocess.run(command, input="hi\n", capture_output=True, text=True, env={"QUARTET_API_KEY": KEYS["ann"]})
    assert served.returncode == 0, served.stderr


def test_the_access_log_has_names_and_ids_but_neither_keys_nor_text(cluster):
    with client_of(cluster, KEYS["ann"]) as client:
        client.chat.completions.create(model=MODEL, messages=QUESTION, extra_headers={"X-Request-Id": "find-me"})
    end = time.monotonic() + 60  # it is written when the answer has left, and may come after it
    while "request=find-me" not in (log := cluster.log.read_text()):
        assert time.monotonic() < end, log
    line = next(line for line in log.splitlines() if "request=find-me" in line)
    assert "path=/v1/chat/completions" in line and "status=200" in line and "key=ann" in line
    assert "Reykjavik" not in log
    for key in (*KEYS.values(), "key-of-eve"):
        assert key not in log
