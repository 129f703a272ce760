"""Requests that schemathesis makes of docs/openapi.json, right ones and wrong ones: each gets an answer that the
document knows, and never a server error.

QUARTET_SCHEMATHESIS_EXAMPLES sets how many requests each operation is fuzzed with: 3000 make some 20,000 altogether.
"""

import os
import pathlib
import re
import subprocess
import sys

import httpx2

from conftest import serve

MODEL = "quartet-demo-exl3"
EXAMPLES = int(os.environ.get("QUARTET_SCHEMATHESIS_EXAMPLES", "10"))
SEED = "1"
# A document cannot say all that makes a request wrong, and null is as good as leaving a field out.
LEFT_OUT = "negative_data_rejection,positive_data_acceptance"


def test_no_request_is_a_server_error(tmp_path):
    folder = pathlib.Path(__file__).parent
    with serve(MODEL, 1, "--max-num-seqs", "16", "--max-model-len", "1024", "--log-dir", str(tmp_path)) as cluster:
        run = subprocess.run(
            [pathlib.Path(sys.executable).parent / "schemathesis", "run", cluster.http + "/openapi.json",
             "--phases", "coverage,fuzzing", "--max-examples", str(EXAMPLES), "--seed", SEED, "--exclude-checks", LEFT_OUT,
             "--continue-on-failure", "--warnings", "off"],
            cwd=tmp_path, env={**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(folder)},
            capture_output=True, text=True)
        print(run.stdout)
        assert run.returncode == 0, run.stdout + run.stderr
        assert int(re.search(r"(\d+) generated", run.stdout).group(1)) >= 500
        # The server's own account.
        metrics = httpx2.get(cluster.http + "/metrics").text
        served = re.findall(r'quartet_gateway_http_requests_total\{path="([^"]*)",status="(\d+)"\} (\S+)', metrics)
        assert sum(float(count) for _, _, count in served) >= 500
        assert [entry for entry in served if entry[1].startswith("5")] == []
        assert httpx2.get(cluster.http + "/readyz").status_code == 200
