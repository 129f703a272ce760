"""The differential oracle (oracle.py) on a few conversations, and what it relies on."""

import itertools
import random
import tempfile

import oracle
from conftest import serve

SEED = 20
CONVERSATIONS = 20
TURNS = 3


def test_settings_change_no_token():
    report = oracle.run(oracle.pairwise(), SEED, CONVERSATIONS, TURNS)
    print(report)
    assert not report.failures, "\n".join(report.failures)
    assert report.compared_turns >= 2 * CONVERSATIONS * report.settings


def test_any_two_values_of_different_settings_meet():
    values, chosen = oracle.all_values(), oracle.pairwise()
    for (a, of_a), (b, of_b) in itertools.combinations(values.items(), 2):
        met = {(getattr(setting, a), getattr(setting, b)) for setting in chosen}
        assert met == set(itertools.product(of_a, of_b))
    assert len(chosen) < len(list(itertools.product(*values.values())))


def test_a_different_token_is_found():
    def turn(*ids):
        return oracle.Turn([1], {}, list(ids), False)

    one = [[turn(1, 2), turn(3, 4, 5)], [turn(6)], [turn(7, 8)]]
    other = [[turn(1, 2), turn(3, 9, 5)], [turn(6)], [turn(7)]]
    assert oracle.first_difference(one, one) == []
    assert oracle.first_difference(one, other) == [(0, 1, 1), (2, 0, 1)]


def test_the_scorer_knows_which_token_the_server_draws():
    """With the noise of its seed, no other token has the value of the one that was drawn."""
    draw = random.Random(3)
    setting = oracle.Setting(1, True, 192, None)
    with tempfile.TemporaryDirectory() as logs, \
            serve(oracle.MODEL, 1, *setting.flags(), "--log-dir", logs) as cluster:
        said = oracle.converse_all(cluster.http.removeprefix("http://"), setting, SEED, 3, 3)
        scorer = oracle.Scorer(logs)
        turns = [turn for turns in said for turn in turns]
        assert {turn.sampling["temperature"] > 0 for turn in turns} == {False, True}
        for turn in turns:
            at = len(turn.tokens) - 1
            drawn = scorer.value(turn, at, turn.tokens[at])
            for other in oracle.tokens(draw, 5):
                if other != turn.tokens[at]:
                    assert drawn > scorer.value(turn, at, other)
