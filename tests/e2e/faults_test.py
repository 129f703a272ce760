"""A worker that dies: the open stream says so, and `quartet serve` says which and why and ends."""

import http.client
import json
import os
import pathlib
import signal

import pytest

from conftest import serve


def children(pid, name):
    """Process ids of the children of `pid` that run the program `name`."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if os.path.basename(os.readlink(f"/proc/{child}/exe")) == name:
                found.append(int(child))
    return found


def test_a_killed_worker_ends_streams_with_an_error_and_the_cluster_with_1():
    with serve("quartet-demo-exl3", 4, exit_codes=(1,)) as cluster:
        connection = http.client.HTTPConnection(cluster.http.removeprefix("http://"), timeout=60)
        body = {"prompt": "Once", "max_tokens": 20000, "ignore_eos": True, "stream": True, "temperature": 1, "seed": 3}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200
        assert reply.readline().startswith(b"data: {")

        workers = children(cluster.process.pid, "quartet-shard-worker")
        assert len(workers) == 4
        os.kill(workers[2], signal.SIGKILL)

        events = [line[6:].strip() for line in reply.read().decode().splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        assert "error" in json.loads(events[-2]), events[-2]
        assert cluster.process.wait(timeout=30) == 1
    assert "shard worker" in cluster.output()
    assert "SIGKILL" in cluster.output() or "signal 9" in cluster.output(), cluster.output()


def test_a_bad_checkpoint_is_refused_before_anything_is_served(tmp_path):
    source = pathlib.Path(__file__).resolve().parents[2] / "models" / "quartet-demo-exl3"
    for file in source.iterdir():
        if not file.name.startswith("model-00002"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(pytest.fail.Exception, match="model-00002-of-00002.safetensors"):
        with serve(tmp_path, 4, exit_codes=(1,), start_timeout_s=5):
            pass
