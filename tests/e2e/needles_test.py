"""Case O13 over HTTP: a fact is found wherever it stands in a prompt that is longer than the indexer selects, in a pool
whose pages are in no order. The longest golden prompt, 2,960 tokens, is what this model's skills carry
(models/README.md); of those it attends to 256 and the newest."""

import concurrent.futures
import random
import re

import openai
import pytest

from conftest import golden_cases, serve

MODEL = "quartet-demo-exl3"
SEQUENCES = 4
DEPTHS = (0.01, 0.33, 0.5, 0.9)


def complete(cluster, prompt, tokens, **extra):
    with openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=tokens, temperature=0, extra_body=extra)
    return answer.choices[0].text, answer.usage.prompt_tokens


def haystack():
    """The longest golden prompt without its facts: what stands before them, its sentences, and the rest."""
    prompt = max(golden_cases("prompts.json"), key=lambda case: len(case["input_ids"]))["prompt"]
    begin, text, rest = re.fullmatch(r"(.*Read this text\.\n)(.*)(\nWhat is the secret code.*)", prompt, re.S).groups()
    sentences = [s for s in re.findall(r"[^.]+\.\s?", text) if "secret code" not in s]
    subject = re.search(r"secret code of (the \w+ \w+)\?", rest).group(1)
    return begin, sentences, subject, rest


def fragment(cluster):
    """Answers of many lengths grow beside each other and end one by one, so that their pages go back in no order."""
    draw = random.Random(13)
    requests = [([draw.randrange(10, 1900) for _ in range(draw.randrange(50, 1500))], draw.randrange(20, 400))
                for _ in range(3 * SEQUENCES)]
    with concurrent.futures.ThreadPoolExecutor(SEQUENCES) as pool:
        for done in [pool.submit(complete, cluster, ids, n, ignore_eos=True) for ids, n in requests]:
            done.result()


@pytest.mark.parametrize("ranks", [1, 4])
def test_O13_a_needle_is_found_at_every_depth(ranks):
    begin, sentences, subject, rest = haystack()

    def ask(cluster, depth, code):
        at = int(depth * len(sentences))
        fact = f"The secret code of {subject} is {code}. "
        text, length = complete(cluster, begin + "".join(sentences[:at] + [fact] + sentences[at:]) + rest, 60)
        assert length > 2800
        return text

    # Without the cache each prompt has pages of its own.
    with serve(MODEL, ranks, "--no-prefix-caching", "--max-num-seqs", str(SEQUENCES),
               "--max-model-len", "4096") as cluster:
        fragment(cluster)
        codes = [str(random.Random(depth).randrange(1000, 10000)) for depth in DEPTHS]
        with concurrent.futures.ThreadPoolExecutor(SEQUENCES) as pool:
            answers = list(pool.map(lambda depth, code: ask(cluster, depth, code), DEPTHS, codes))
    for depth, code, answer in zip(DEPTHS, codes, answers):
        assert f"The secret code of {subject} is {code}." in answer, f"at {depth:.0%}: {answer!r}"
