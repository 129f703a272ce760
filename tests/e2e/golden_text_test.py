"""All reference answers of the demo model in text, token for token over HTTP, under each setting once."""

import concurrent.futures

import openai
import pytest

from conftest import golden_cases, serve

STACKED, STANDARD = "quartet-demo-exl3", "quartet-demo-exl3-std"

SETTINGS = {
    "tp1": (STACKED, 1),
    "tp2": (STACKED, 2),
    "tp4": (STACKED, 4),
    "tp1-standard-layout": (STANDARD, 1),
    "tp2-standard-layout": (STANDARD, 2),
    "tp4-standard-layout": (STANDARD, 4),
    "tp4-prefill-chunks-of-64": (STACKED, 4, "--prefill-chunk", "64"),
    "tp4-fp32-latents": (STACKED, 4, "--kv-dtype", "fp32"),
    "tp4-fp8-latents": (STACKED, 4, "--kv-dtype", "fp8_e4m3"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_token_is_that_of_the_reference(setting):
    model, ranks, *flags = SETTINGS[setting]
    cases = golden_cases("prompts.json")
    assert len(cases) == 38
    with serve(model, ranks, *flags) as cluster:
        with openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=300) as client:

            def ask(case):
                return client.completions.create(
                    model=model, prompt=case["prompt"], max_tokens=len(case["output_ids"]) + 20,
                    extra_body={"return_token_ids": True},
                ).choices[0]

            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                choices = list(pool.map(ask, cases))
    wrong = [
        f"{case['id']} {case['skill']}: {choice.token_ids} instead of {case['output_ids']}"
        for case, choice in zip(cases, choices)
        if choice.token_ids != case["output_ids"] or choice.prompt_token_ids != case["input_ids"]
    ]
    assert not wrong, "\n".join(wrong)
    assert all(choice.finish_reason == "stop" for choice in choices)
