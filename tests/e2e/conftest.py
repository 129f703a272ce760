"""Starts clusters for tests with `quartet serve`, as a user would."""

import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import threading
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("QUARTET_BIN", ROOT / "build" / "cpu" / "bin"))
START_TIMEOUT_S = 120


class Cluster:
    """A running cluster: `http` is the base URL, `grpc` host:port."""

    def __init__(self, process, lines):
        self.process = process
        self.lines = lines
        self.http = None
        self.grpc = None

    def output(self):
        return "".join(self.lines)


@contextlib.contextmanager
def serve(model, tensor_parallel_size, *flags, exit_codes=(0, 130), start_timeout_s=START_TIMEOUT_S):
    """A cluster that serves models/`model` (or the folder `model`) and must end with one of `exit_codes`."""
    command = [
        str(BIN / "quartet"), "serve", "--model", str(ROOT / "models" / model),
        "--tensor-parallel-size", str(tensor_parallel_size), "--device", os.environ.get("QUARTET_TEST_DEVICE", "cpu"),
        "--listen-http", "127.0.0.1:0", "--listen-grpc", "127.0.0.1:0", *flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines, arrived = [], queue.Queue()

    def read():
        for line in process.stdout:
            lines.append(line)
            arrived.put(line)
        arrived.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    cluster = Cluster(process, lines)
    try:
        end = time.monotonic() + start_timeout_s
        while cluster.http is None or cluster.grpc is None:
            try:
                line = arrived.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"not ready within {start_timeout_s} s: {' '.join(command)}\n{cluster.output()}")
            if line is None:
                pytest.fail(f"ended before it was ready: {' '.join(command)}\n{cluster.output()}")
            if match := re.search(r"\bHTTP\s+(http://\S+)", line):
                cluster.http = match.group(1)
            if match := re.search(r"\bgRPC\s+(\S+:\d+)", line):
                cluster.grpc = match.group(1)
        yield cluster
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            code = process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail(f"did not stop within 30 s of Ctrl-C\n{cluster.output()}")
        reader.join(timeout=10)
    assert code in exit_codes, f"ended with {code}\n{cluster.output()}"


def metric(cluster, name, labels=""):
    """The sum of a metric's series whose labels hold `labels`, as the cluster tells it."""
    with urllib.request.urlopen(cluster.http + "/metrics") as reply:
        series = re.findall(rf"^{re.escape(name)}(\{{.*\}})? (\S+)$", reply.read().decode(), re.MULTILINE)
    return sum(float(value) for found, value in series if labels in found)


def at_work(cluster):
    """Requests that the gateway or the engine is working on."""
    return sum(metric(cluster, name) for name in
               ("quartet_gateway_open_generations", "vllm:num_requests_running", "vllm:num_requests_waiting"))


def wait_until_idle(cluster):
    end = time.monotonic() + 60
    while (count := at_work(cluster)) > 0:
        assert time.monotonic() < end, f"{count} at work"


@contextlib.contextmanager
def cancelled(cluster, count=1):
    """What is asked for within is cancelled, `count` times, and nothing of it is at work soon afterwards."""
    cancellations = lambda: metric(cluster, "quartet_gateway_generations_total", 'outcome="cancelled"')
    before = cancellations()
    yield
    end = time.monotonic() + 60
    while cancellations() < before + count:
        assert time.monotonic() < end, f"{cancellations() - before} cancelled"
    wait_until_idle(cluster)
    assert cancellations() == before + count


@pytest.fixture(scope="module")
def cluster():
    """The demo model on two ranks. Files that need another cluster have a fixture of their own."""
    with serve("quartet-demo-exl3", 2) as running:
        yield running


@pytest.fixture
def client(cluster):
    """OpenAI's, without retries: an error must be seen as it is."""
    import openai  # not every user of this file has it

    with openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0) as made:
        yield made


def golden_cases(file_name):
    """The text cases of a file of reference answers."""
    with open(ROOT / "tests" / "data" / "demo" / file_name) as file:
        return [case for case in json.load(file)["cases"] if not case.get("image")]
