#!/usr/bin/env python3
"""The differential oracle: the same conversations under different settings must give the same text.

    oracle.py --conversations 300 --seed 7         (with the Python of tests/e2e/requirements.txt)
    oracle.py --ranks 1 --margin 0.1               where rounding depends on the settings (QUARTET_TEST_DEVICE=cuda)
    QUARTET_BATCH_INVARIANT=true oracle.py ...     where it must not, on a GPU too

A conversation is drawn from a seed: a system prompt that others share, then turns that go on, branch off or change what
was said, greedy or sampled, some with penalties, and some are left in the middle of an answer. Several run at once, in an order and number
that differ from setting to setting. Within one tensor-parallel size every token must be the same, whatever the cache, the
chunks and the speculation. Between sizes sums are added in another order: where two texts part for the first time, the two
tokens must be nearly equal in the model's own eyes, and what follows is not compared. On a GPU the sums of a prompt also
depend on how it is cut; with --margin the same is allowed between all settings.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import http.client
import itertools
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import conftest

MODEL = "quartet-demo-exl3"
# Ordinary tokens of the demo's vocabulary.
FIRST_ID, LAST_ID = 300, 1900
NEAR_TIE_LOGITS = 1e-3
TIMEOUT_S = 300


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a cluster is run. speculation: draft tokens, "dynamic", or None where the server does not know it."""
    ranks: int
    cache: bool
    chunk: int
    speculation: object

    @property
    def name(self):
        speculation = "" if self.speculation is None else f"-spec-{self.speculation}"
        return f"tp{self.ranks}-cache-{'on' if self.cache else 'off'}-chunk-{self.chunk}{speculation}"

    def flags(self):
        # The budget is above the chunk, so that it is the chunk that cuts.
        flags = ["--prefill-chunk", str(self.chunk), "--max-num-batched-tokens", str(max(512, self.chunk + 64))]
        if not self.cache:
            flags.append("--no-prefix-caching")
        if self.speculation is not None:
            # What a seed says with drafts is the same as without only if the draw is coupled.
            flags += ["--spec-sampling", "coupled"]
            dynamic = self.speculation == "dynamic"
            flags += ["--num-speculative-tokens", "3" if dynamic else str(self.speculation)]
            flags += ["--spec-dynamic", "true" if dynamic else "false"]
        return flags


def server_knows(flag):
    text = subprocess.run([conftest.BIN / "quartet", "serve", "--help"], capture_output=True, text=True, check=True).stdout
    return flag in text


def all_values(ranks=(1, 4)):
    """The values of each field of a Setting that this server can be run with."""
    speculation = [0, 1, 3, "dynamic"] if server_knows("--num-speculative-tokens") else [None]
    return {"ranks": list(ranks), "cache": [False, True], "chunk": [64, 192, 4096], "speculation": speculation}


def reference(ranks):
    """What all settings of this size are compared with: nothing cached, nothing drafted, prompts whole."""
    return Setting(ranks, False, 4096, all_values()["speculation"][0])


def pairwise(ranks=(1, 4)):
    """Settings in which any two values of different fields meet, the references among them; chosen greedily."""
    values = all_values(ranks)
    names = list(values)
    every = [Setting(*combination) for combination in itertools.product(*values.values())]

    def pairs(setting):
        held = dataclasses.astuple(setting)
        return {((names[i], held[i]), (names[j], held[j])) for i, j in itertools.combinations(range(len(names)), 2)}

    chosen = [reference(ranks) for ranks in values["ranks"]]
    missing = set().union(*map(pairs, every)) - set().union(*map(pairs, chosen))
    while missing:
        chosen.append(max(every, key=lambda setting: len(pairs(setting) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


@dataclasses.dataclass
class Turn:
    prompt: list
    sampling: dict
    tokens: list
    cancelled: bool


def tokens(draw, count):
    return [draw.randint(FIRST_ID, LAST_ID) for _ in range(count)]


def system_prompts(seed):
    draw = random.Random(f"{seed} system")
    return [tokens(draw, draw.randint(200, 900)) for _ in range(3)]


def next_prompt(draw, systems, turns):
    """The prompt of the next turn, which depends on what was said before."""
    added = tokens(draw, draw.choice([1, 7, 30, 64, 200, 320]))
    if not turns:
        return draw.choice(systems) + added
    said = turns[-1].prompt + turns[-1].tokens
    way = draw.random()
    if way < 0.6:
        return said + added
    if way < 0.8:  # branches off from an earlier turn
        return draw.choice(turns).prompt + added
    edited = list(said)
    edited[draw.randrange(len(edited))] = draw.randint(FIRST_ID, LAST_ID)
    return edited + added


def complete(connection, prompt, sampling, max_tokens, leave_after):
    """The ids of an answer; of one that is left, its first `leave_after`."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "return_token_ids": True, "ignore_eos": True,
            **sampling}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise RuntimeError(f"HTTP {reply.status}: {reply.read().decode()}")
    ids = []
    for line in reply:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(f"error event: {event['error']}")
        for choice in event["choices"]:
            ids += choice.get("token_ids") or []
        if leave_after is not None and len(ids) >= leave_after:
            # Closing the connection is what the server sees.
            connection.close()
            return ids[:leave_after]
    return ids


def converse(address, seed, number, max_turns):
    draw = random.Random(f"{seed} {number}")
    systems = system_prompts(seed)
    turns = []
    with contextlib.closing(http.client.HTTPConnection(address, timeout=TIMEOUT_S)) as connection:
        for _ in range(draw.randint(2, max_turns)):
            prompt = next_prompt(draw, systems, turns)
            temperature = draw.choice([0, 0, 0.7, 1.0, 1.5])
            sampling = {"temperature": temperature, "top_p": 1, "top_k": 0, "min_p": 0}
            sampling["seed"] = draw.randrange(1 << 31)
            if draw.random() < 0.4:
                sampling["presence_penalty"] = draw.choice([0, 0.5, 1.5])
                sampling["frequency_penalty"] = draw.choice([-0.25, 0.25, 1])
            max_tokens = draw.randint(1, 40)
            leave_after = draw.randint(1, max_tokens) if draw.random() < 0.15 else None
            ids = complete(connection, prompt, sampling, max_tokens, leave_after)
            assert len(ids) == (leave_after or max_tokens), (number, len(turns), len(ids))
            turns.append(Turn(prompt, sampling, ids, leave_after is not None))
    return turns


def converse_all(address, setting, seed, conversations, max_turns):
    """All conversations, several at once: how many and in which order is another matter with every setting."""
    draw = random.Random(f"{seed} {setting.name}")
    order = list(range(conversations))
    draw.shuffle(order)
    with concurrent.futures.ThreadPoolExecutor(draw.randint(2, 8)) as pool:
        futures = {number: pool.submit(converse, address, seed, number, max_turns) for number in order}
        return [futures[number].result() for number in range(conversations)]


def first_difference(one, other):
    """(conversation, turn, token) of the first difference of each conversation that has one."""
    found = []
    for number, (turns, others) in enumerate(zip(one, other)):
        for at, (turn, expected) in enumerate(zip(turns, others)):
            if turn.tokens != expected.tokens:
                pairs = itertools.zip_longest(turn.tokens, expected.tokens)
                found.append((number, at, next(i for i, (a, b) in enumerate(pairs) if a != b)))
                break
    return found


# ---- how near two tokens are ---------------------------------------------------------------------------------------


def philox(counter, key):
    """Philox4x32-10, 128 random bits as four words."""
    for round_number in range(10):
        if round_number:
            key = ((key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF)
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = ((second >> 32) ^ counter[1] ^ key[0], second & 0xFFFFFFFF,
                   (first >> 32) ^ counter[3] ^ key[1], first & 0xFFFFFFFF)
    return counter


def gumbel(seed, token, position):
    high, low = philox((token, position, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))[:2]
    uniform = (((high << 32 | low) >> 12) + 0.5) * 2.0**-52
    return -math.log(-math.log(uniform))


def describe_engine():
    """The description of engine.proto, from protoc or, where that is not, from the file QUARTET_ENGINE_DESCRIPTION."""
    if described := os.environ.get("QUARTET_ENGINE_DESCRIPTION"):
        return pathlib.Path(described).read_bytes()
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(["protoc", "-I", conftest.ROOT, "--include_imports", "-o", file.name,
                        "proto/quartet/v1/engine.proto"], check=True, cwd=conftest.ROOT)
        return pathlib.Path(file.name).read_bytes()


class Scorer:
    """Asks a cluster's coordinator what its model thinks of a token."""

    def __init__(self, logs):
        address = re.search(r"may dial (unix:\S+?)[\"\s]", (pathlib.Path(logs) / "coordinator.log").read_text()).group(1)
        files = descriptor_pb2.FileDescriptorSet.FromString(describe_engine())
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        method = pool.FindServiceByName("quartet.v1.Engine").FindMethodByName("Generate")
        self.request = message_factory.GetMessageClass(method.input_type)
        answer = message_factory.GetMessageClass(method.output_type)
        self.channel = grpc.insecure_channel(address)
        self.generate = self.channel.stream_stream(
            "/quartet.v1.Engine/Generate", request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString)

    def logprob(self, text, token):
        """log p of the token after the text."""
        request = self.request()
        request.submit.prompt_ids.extend(text + [token])
        request.submit.max_tokens = 1
        request.submit.prompt_logprobs = True
        answered = threading.Event()

        def requests():
            yield request
            answered.wait()  # the end of the requests would cancel the call

        values = []
        for event in self.generate(requests(), timeout=TIMEOUT_S):
            values += event.tokens.prompt_logprobs
            if event.HasField("finished"):
                answered.set()
        assert len(values) == len(text), (len(values), len(text))
        return values[-1]

    def value(self, turn, at, token):
        """What the draw of token number `at` maximises, in units of logits."""
        logprob = self.logprob(turn.prompt + turn.tokens[:at], token)
        if said := turn.tokens[:at].count(token):
            logprob -= turn.sampling.get("presence_penalty", 0) + said * turn.sampling.get("frequency_penalty", 0)
        temperature = turn.sampling["temperature"]
        if temperature == 0:
            return logprob
        return logprob + temperature * gumbel(turn.sampling["seed"], token, len(turn.prompt) + at)


# ---- a whole run ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Report:
    settings: int = 0
    compared_turns: int = 0
    compared_tokens: int = 0
    near_ties: int = 0
    widest_tie: float = 0
    failures: list = dataclasses.field(default_factory=list)


def run(settings, seed, conversations, max_turns, progress=lambda line: None, margin=None, jobs=1):
    """Runs every setting and compares. Settings must hold a reference for each number of ranks, before the others.

    margin: in logits, how far two tokens may be apart where the texts of two settings of one size part; None: nowhere.
    jobs: clusters at a time, which share the cores; the references come before all others.
    """
    report = Report()
    references = {}
    lock = threading.Lock()

    def run_one(setting, at_a_time):
        threads = []
        if jobs > 1:
            threads = ["--threads", str(max(1, os.cpu_count() // (at_a_time * setting.ranks)))]
        with tempfile.TemporaryDirectory() as logs, \
                conftest.serve(MODEL, setting.ranks, *setting.flags(), *threads, "--log-dir", logs) as cluster:
            said = converse_all(cluster.http.removeprefix("http://"), setting, seed, conversations, max_turns)
            with lock:
                report.settings += 1
                report.compared_turns += sum(map(len, said))
                report.compared_tokens += sum(len(turn.tokens) for turns in said for turn in turns)
                compare(report, setting, said, references, logs, margin)
                references.setdefault(setting.ranks, said)
                progress(f"{setting.name}: {len(report.failures)} failures so far")

    first = {}
    for setting in settings:
        first.setdefault(setting.ranks, setting)
    for part in list(first.values()), [setting for setting in settings if setting not in first.values()]:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for done in [pool.submit(run_one, setting, min(jobs, len(part))) for setting in part]:
                done.result()
    return report


def compare(report, setting, said, references, logs, margin):
    """Against the reference of the same size, or a reference itself against those of the other sizes."""
    reference = references.get(setting.ranks)
    if reference is None:
        compare_by_margin(report, setting, said, references, logs, margin or NEAR_TIE_LOGITS)
    elif margin is not None:
        compare_by_margin(report, setting, said, {setting.ranks: reference}, logs, margin)
    else:
        for number, turn, at in first_difference(said, reference):
            report.failures.append(
                f"{setting.name}: conversation {number}, turn {turn}, token {at}: "
                f"{said[number][turn].tokens[at:at + 1]} instead of {reference[number][turn].tokens[at:at + 1]}")


def compare_by_margin(report, setting, said, references, logs, most):
    """Against references that may part from it where the two tokens are at most so many logits apart."""
    scorer = None
    for ranks, others in references.items():
        for number, turn, at in first_difference(said, others):
            scorer = scorer or Scorer(logs)
            here, there = said[number][turn], others[number][turn]
            margin = scorer.value(here, at, here.tokens[at]) - scorer.value(here, at, there.tokens[at])
            report.widest_tie = max(report.widest_tie, abs(margin))
            if abs(margin) <= most:
                report.near_ties += 1
            else:
                report.failures.append(f"{setting.name} and {ranks} ranks: conversation {number}, turn {turn}, token {at}: "
                                       f"{here.tokens[at]} and {there.tokens[at]}, {margin:.2e} apart")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--turns", type=int, default=6, help="most turns of a conversation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--margin", type=float, help="allow differences between tokens that are so many logits apart")
    parser.add_argument("--jobs", type=int, default=1, help="clusters at a time")
    args = parser.parse_args()
    report = run(pairwise(args.ranks), args.seed, args.conversations, args.turns,
                 progress=lambda line: print(line, flush=True), margin=args.margin, jobs=args.jobs)
    for failure in report.failures:
        print(failure)
    print(f"{report.settings} settings, {report.compared_turns} turns, {report.compared_tokens} tokens, "
          f"{report.near_ties} near ties (the widest {report.widest_tie:.1e} logits), {len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
