#!/usr/bin/env python3
"""Real processes on GPUs: a cluster that `quartet serve` starts, asked over HTTP. Needs nothing but Python.

    gpu_cluster.py texts --ranks 2                 every reference answer in text, token for token
    gpu_cluster.py steps --ranks 4 --count 500     decode steps at temperature 1, all ranks with the same hash

Ranks beyond the number of cards share cards. The coordinator compares the hashes that the ranks report of each step: it
counts a step that all of them have reported alike in quartet_step_seconds, one that they have not in
quartet_agreement_mismatch_total, and then it ends.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ["quartet-demo-exl3", "quartet-demo-exl3-std"]
STOP_TIMEOUT_S = 30
# Of one request of `steps`. Contexts stay short, requests come and go.
STEP_TOKENS = 250


class Cluster:
    """A running cluster: its HTTP address and what it has printed so far."""

    def __init__(self):
        self.address = None
        self.lines = []

    def request(self, method, path, body=None, timeout=600):
        connection = http.client.HTTPConnection(self.address, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read().decode()
            if reply.status != 200:
                raise RuntimeError(f"{path}: HTTP {reply.status}: {text}")
            return text

    def complete(self, body):
        return json.loads(self.request("POST", "/v1/completions", body))["choices"][0]

    def steps(self):
        """Steps that all ranks have reported alike, by kind, and the number of those that they have not."""
        text = self.request("GET", "/metrics", timeout=60)
        agreed = collections.Counter()
        for kind, count in re.findall(r'^quartet_step_seconds_count\{kind="(\w+)",[^}]*\} (\S+)$', text, re.M):
            agreed[kind] += int(float(count))
        mismatches = re.search(r"^quartet_agreement_mismatch_total (\S+)$", text, re.M)
        return agreed, int(float(mismatches.group(1)))


@contextlib.contextmanager
def serve(args, logs):
    command = [
        args.bin / "quartet", "serve", "--model", ROOT / "models" / args.model, "--device", args.device,
        "--tensor-parallel-size", args.ranks, "--max-num-seqs", args.streams, "--kv-dtype", args.kv_dtype,
        # Ranks that share a card each ask for a share of it, which the demo model does not need.
        "--memory-gib", 4, "--max-model-len", 4096, "--listen-http", "127.0.0.1:0", "--listen-grpc", "127.0.0.1:0",
        "--log-dir", logs,
    ]
    environment = os.environ | {"QUARTET_COLLECTIVES": args.collectives}
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env=environment)
    cluster = Cluster()
    ready = threading.Event()

    def read():
        for line in process.stdout:
            cluster.lines.append(line)
            if match := re.search(r"\bHTTP\s+http://(\S+)", line):
                cluster.address = match.group(1)
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        if not ready.wait(args.start_timeout_s) or cluster.address is None:
            raise RuntimeError(f"the cluster was not ready within {args.start_timeout_s} s")
        yield cluster
    except Exception:
        sys.stdout.write("".join(cluster.lines[-20:]))
        raise
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join(10)


def golden_cases():
    with open(ROOT / "tests" / "data" / "demo" / "prompts.json") as file:
        return [case for case in json.load(file)["cases"] if not case.get("image")]


def check_texts(cluster, args):
    def ask(case):
        return cluster.complete({
            "model": args.model, "prompt": case["prompt"], "max_tokens": len(case["output_ids"]) + 20,
            "return_token_ids": True,
        })

    cases = golden_cases()
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
        choices = list(pool.map(ask, cases))
    equal = [choice["token_ids"] == case["output_ids"] and choice["prompt_token_ids"] == case["input_ids"]
             for case, choice in zip(cases, choices)]
    for case, choice, good in zip(cases, choices, equal):
        if not good:
            print(f"  {case['id']} {case['skill']}: {choice['token_ids']} instead of {case['output_ids']}")
    agreed, mismatches = cluster.steps()
    print(f"  {sum(equal)} of {len(cases)} texts token for token in {time.monotonic() - begin:.1f} s; "
          f"{sum(agreed.values())} steps, {mismatches} hash mismatches")
    return all(equal) and len(cases) == 38 and mismatches == 0


def check_steps(cluster, args):
    prompts = [case["prompt"] for case in golden_cases()]
    enough = threading.Event()

    def stream(number):
        """One request after the other, until there are enough steps. Returns the tokens that came back."""
        tokens = 0
        while not enough.is_set():
            seed = tokens * args.streams + number
            choice = cluster.complete({
                "model": args.model, "prompt": prompts[seed % len(prompts)], "max_tokens": STEP_TOKENS, "seed": seed,
                "temperature": 1.0, "top_p": 1, "ignore_eos": True, "return_token_ids": True,
            })
            tokens += len(choice["token_ids"])
        return tokens

    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
        streams = [pool.submit(stream, number) for number in range(args.streams)]
        try:
            while cluster.steps()[0].get("decode", 0) < args.count and not any(s.done() for s in streams):
                time.sleep(0.2)
        finally:
            enough.set()
        tokens = sum(future.result() for future in streams)
    seconds = time.monotonic() - begin
    agreed, mismatches = cluster.steps()
    decode = agreed.get("decode", 0)
    print(f"  {decode} decode steps of {args.ranks} ranks (and {sum(agreed.values()) - decode} with prompts), "
          f"{mismatches} hash mismatches; {tokens} tokens at temperature 1.0 in {seconds:.1f} s")
    return decode >= args.count and mismatches == 0


def print_collectives(logs):
    """How the ranks talk, as one of them says."""
    for log in sorted(pathlib.Path(logs).iterdir()):
        if found := re.search(r"collectives of .*", log.read_text(errors="replace")):
            print(f"  {found.group()}")
            return


def print_memory(args):
    """What the processes have taken of each card, for the memory plan's allowances."""
    if args.device != "cuda":
        return
    used = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    print(f"  memory in use by card: {' '.join(used)} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=["texts", "steps"])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "gpu" / "bin", help="folder of the programs")
    parser.add_argument("--model", default="quartet-demo-exl3", choices=MODELS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--collectives", default="auto", choices=["auto", "peer", "nccl"])
    parser.add_argument("--kv-dtype", default="fp16", choices=["fp32", "fp16", "fp8_e4m3"])
    parser.add_argument("--streams", type=int, default=4, help="requests at the same time")
    parser.add_argument("--count", type=int, default=500, help="decode steps")
    parser.add_argument("--start-timeout-s", type=float, default=120)
    args = parser.parse_args()
    print(f"{args.check}: {args.model}, {args.ranks} ranks, {args.collectives}, {args.kv_dtype}")
    with tempfile.TemporaryDirectory() as logs, serve(args, logs) as cluster:
        print_collectives(logs)
        print_memory(args)
        good = (check_texts if args.check == "texts" else check_steps)(cluster, args)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
