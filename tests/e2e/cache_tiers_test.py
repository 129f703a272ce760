"""Prefixes that leave the device's pools come back from host memory, and after a restart from disk; damage costs time."""

import json
import re
import time
import urllib.request

import pytest

from conftest import serve

MODEL = "quartet-demo-exl3"
UNIT = 256
# One sequence at a time and pages for one context: 8 of them.
SMALL = ("--max-num-seqs", "1", "--max-model-len", "2048")
SENTENCE = "In year {year} of the {name} log the crew of ship {number} counted {count} stars and wrote them down. "


def story(session, sentences):
    names = ("northern", "southern", "eastern", "western", "inner", "outer")
    return "".join(
        SENTENCE.format(year=1000 + 7 * i + session, name=names[(i + session) % 6], number=10 * session + i % 9,
                        count=(i * i + session) % 97)
        for i in range(sentences))


def ask(cluster, prompt, tokens=12):
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "return_token_ids": True}
    request = urllib.request.Request(cluster.http + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        answer = json.load(reply)
    usage = answer["usage"]
    return (answer["choices"][0]["token_ids"], usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"])


def metric(cluster, name, **labels):
    text = urllib.request.urlopen(cluster.http + "/metrics").read().decode()
    for line in text.splitlines():
        found = re.match(rf"{name}\{{([^}}]*)\}} (\S+)$", line)
        if found and all(f'{key}="{value}"' in found.group(1) for key, value in labels.items()):
            return float(found.group(2))
    return 0.0


def wait_for(condition, what):
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"did not happen within 60 s: {what}")
        time.sleep(0.05)


def whole_units(tokens):
    """What of a prompt can be cached: one token is always computed."""
    return (tokens - 1) // UNIT * UNIT


@pytest.fixture(scope="module")
def plain():
    with serve(MODEL, 1, *SMALL, "--no-prefix-caching") as cluster:
        yield cluster


def test_four_conversations_that_exceed_the_pages_take_turns(plain):
    with serve(MODEL, 1, *SMALL, "--host-cache-gib", "0.25") as cluster:
        shared = hit = 0
        length = [0] * 4
        prompts = [story(session, 40) for session in range(4)]
        for turn in range(3):
            for session in range(4):
                text, tokens, cached = ask(cluster, prompts[session])
                if turn == 2:
                    assert text == ask(plain, prompts[session])[0]
                if turn > 0:
                    shared += whole_units(length[session])
                    hit += cached
                length[session] = tokens
                prompts[session] += story(session + 10 * (turn + 1), 3)
        pages = metric(cluster, "quartet_page_restored_total", tier="host")
        assert metric(cluster, "quartet_cache_bytes", tier="host", pool="pages") > 0
    print(f"\n  contexts of {length} tokens on 8 pages: hit {hit} of {shared} tokens of shared whole units, "
          f"{100 * hit / shared:.1f} %; {pages:.0f} pages came back from host memory")
    assert sum(length) > 2 * 8 * UNIT
    assert hit >= 0.95 * shared
    assert pages * UNIT > hit / 2


def test_a_damaged_copy_costs_time_and_never_text(plain):
    with serve(MODEL, 1, *SMALL, "--host-cache-gib", "0.25", "--corrupt-copies", "3") as cluster:
        prompts = [story(session, 40) for session in range(3)]
        for _ in range(2):
            for prompt in prompts:
                assert ask(cluster, prompt)[0] == ask(plain, prompt)[0]
        failed = sum(metric(cluster, f"quartet_{kind}_checksum_failed_total", tier="host") for kind in ("page", "snapshot"))
        discarded = metric(cluster, "quartet_page_discarded_total", tier="host")
    print(f"\n  {failed:.0f} checksums failed, {discarded:.0f} pages were discarded")
    assert failed > 0


def test_a_conversation_is_warm_after_a_restart(plain, tmp_path):
    flags = (*SMALL, "--host-cache-gib", "0.25", "--disk-cache-dir", str(tmp_path / "cache"), "--disk-cache-gib", "0.25")
    prompt = story(1, 40)
    expected = ask(plain, prompt)[0]
    with serve(MODEL, 2, *flags) as cluster:
        _, tokens, cached = ask(cluster, prompt)
        assert cached == 0
        page_bytes = metric(cluster, "quartet_cache_bytes", tier="device", pool="pages")
        wait_for(lambda: metric(cluster, "quartet_cache_bytes", tier="disk", pool="pages") == page_bytes
                 and metric(cluster, "quartet_snapshot_published_total", tier="disk") > 0, "the disk has all pages")
    with serve(MODEL, 2, *flags) as cluster:
        text, tokens, cached = ask(cluster, prompt)
        pages = metric(cluster, "quartet_page_restored_total", tier="disk")
        print(f"\n  after a restart: {cached} of {tokens} tokens from disk, {pages:.0f} pages")
        assert cached == whole_units(tokens)
        assert pages == cached / UNIT
        assert len(text) == len(expected)
    # A byte of every page goes bad on one rank.
    path = next((tmp_path / "cache").glob("rank1of2.pages"))
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        used = [at for at in range(0, len(data), 4096) if data[at:at + 8] == b"qttier01"]
        assert used
        for at in used:
            data[at + 4096 + 100] ^= 1
        file.seek(0)
        file.write(data)
    with serve(MODEL, 2, *flags) as cluster:
        again, tokens, cached = ask(cluster, prompt)
        assert again == text
        assert cached == 0
        assert metric(cluster, "quartet_page_checksum_failed_total", tier="disk") > 0
