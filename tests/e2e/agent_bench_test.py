"""`quartet bench --scenario agent`: what a conversation that grows finds in the prefix cache."""

import json
import subprocess

from conftest import BIN, serve

MODEL = "quartet-demo-exl3"
UNIT, BLOCK = 256, 2304
TURNS = 6


def whole_units(tokens):
    return tokens // UNIT * UNIT


def test_every_turn_begins_where_the_one_before_it_was():
    with serve(MODEL, 1) as cluster, serve(MODEL, 1, "--snapshot-policy", "boundary") as coarse:
        bench = subprocess.run(
            [BIN / "quartet", "bench", "--scenario", "agent", "--url", cluster.http, "--compare-url", coarse.http,
             "--turns", str(TURNS), "--output-tokens", "32", "--json", "-"],
            capture_output=True, text=True, timeout=250)
    assert bench.returncode == 0, bench.stderr
    print(bench.stderr)
    report = json.loads(bench.stdout)
    fine, coarse = report["runs"]
    assert len(fine["turns"]) == len(coarse["turns"]) == TURNS
    assert fine["turns"][0]["cached_tokens"] == coarse["turns"][0]["cached_tokens"] == 0
    for before, turn in zip(fine["turns"], fine["turns"][1:]):
        # The prompt before this one lies in the cache up to its last whole unit.
        assert whole_units(before["prompt_tokens"] - 1) <= turn["cached_tokens"] <= whole_units(turn["shared_tokens"])
    for turn in coarse["turns"][1:]:
        assert turn["cached_tokens"] % BLOCK == 0
        assert turn["shared_tokens"] - turn["cached_tokens"] < BLOCK + 32
    assert fine["reused_unit_share"] >= 0.99 > coarse["reused_unit_share"]
    # A prompt below a block: 300 tokens find 256 when they come again.
    assert (fine["short_cached_tokens"], coarse["short_cached_tokens"]) == (UNIT, 0)
