"""Tool calls of the demo model, through the official OpenAI client and through `quartet`'s own commands."""

import json
import re
import subprocess

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from conftest import BIN, ROOT
from tool_cases import ANSWERED, CALLING, CASES, MODEL, PARALLEL, by_name


def calls_of(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


def test_the_reference_answers_hold_what_is_tested():
    assert (len(CASES), len(CALLING), len(PARALLEL)) == (8, 7, 2)
    values = [value for case in CALLING for _, arguments in case.calls for value in arguments.values()]
    assert {type(value) for value in values} >= {str, int, bool}


@pytest.mark.parametrize("case", **by_name(CALLING))
def test_calls(client, case):
    answer = client.chat.completions.create(**case.request())
    choice = answer.choices[0]
    assert calls_of(choice.message) == case.calls
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.reasoning_content.startswith("I call ")
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == len(ids) and all(re.fullmatch("call_[A-Za-z0-9]{24}", id) for id in ids)
    if not case.results:
        assert answer.usage.prompt_tokens == len(case.golden["input_ids"])
        assert answer.usage.completion_tokens == len(case.golden["output_ids"])


@pytest.mark.parametrize("case", **by_name(CALLING))
def test_a_stream_adds_up_to_the_same_calls(client, case):
    calls, finishes, usage = {}, [], None
    stream = client.chat.completions.create(**case.request(stream=True, stream_options={"include_usage": True}))
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finishes += [choice.finish_reason] if choice.finish_reason else []
            assert not choice.delta.content
            for delta in choice.delta.tool_calls or []:
                if delta.id:
                    assert delta.index == len(calls) and delta.type == "function"
                    calls[delta.index] = (delta.function.name, "")
                name, arguments = calls[delta.index]
                calls[delta.index] = (name, arguments + delta.function.arguments)
    assert [(name, json.loads(arguments)) for name, arguments in calls.values()] == case.calls
    assert finishes == ["tool_calls"]
    if not case.results:
        assert usage.completion_tokens == len(case.golden["output_ids"])


def test_the_stream_helper_accumulates_calls(client):
    case = CALLING[0]
    with client.chat.completions.stream(**case.request()) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert calls_of(message) == case.calls


@pytest.mark.parametrize("case", **by_name(ANSWERED))
def test_results_go_back_and_are_answered(client, case):
    request = case.request()
    message = client.chat.completions.create(**request).choices[0].message
    request["messages"] += [message] + [
        {"role": "tool", "tool_call_id": call.id, "content": result}
        for call, result in zip(message.tool_calls, case.results, strict=True)
    ]
    answer = client.chat.completions.create(**request)
    # The same prompt as that of the reference, token for token: the message came back as it went out.
    assert answer.usage.prompt_tokens == len(case.golden["input_ids"])
    reasoning, content = case.answer()
    assert answer.choices[0].message.reasoning_content == reasoning
    assert answer.choices[0].message.content == content
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("case", **by_name([case for case in CASES if not case.calls]))
def test_without_a_tool_that_fits_the_answer_is_text(client, case):
    choice = client.chat.completions.create(**case.request()).choices[0]
    assert choice.message.tool_calls is None
    assert choice.message.content == "I have no tool for that."
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", **by_name(PARALLEL))
def test_without_parallel_calls_there_is_one(client, case, stream):
    answer = client.chat.completions.create(**case.request(
        parallel_tool_calls=False, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})))
    if stream:
        deltas, usage = [], None
        for chunk in answer:
            usage = chunk.usage or usage
            deltas += [delta for choice in chunk.choices for delta in choice.delta.tool_calls or []]
        assert {delta.index for delta in deltas} == {0}
        arguments = "".join(delta.function.arguments for delta in deltas)
    else:
        usage = answer.usage
        assert answer.choices[0].finish_reason == "tool_calls"
        assert len(answer.choices[0].message.tool_calls) == 1
        arguments = answer.choices[0].message.tool_calls[0].function.arguments
    assert json.loads(arguments) == case.calls[0][1]
    assert usage.completion_tokens < len(case.golden["output_ids"])


def test_a_call_that_is_cut_off_says_length(client):
    case = CALLING[0]
    answer = client.chat.completions.create(**case.request(max_tokens=len(case.golden["output_ids"]) - 3))
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.choices[0].message.tool_calls[0].function.arguments)


def test_tool_choice_none_keeps_the_prompt_and_parses_nothing(client):
    case = CALLING[0]
    answer = client.chat.completions.create(**case.request(tool_choice="none"))
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(case.golden["input_ids"])


@pytest.mark.parametrize("case", **by_name(PARALLEL))
def test_grpc(cluster, case):
    with grpc.insecure_channel(cluster.grpc) as channel:
        service = DescriptorPool(ProtoReflectionDescriptorDatabase(channel)).FindServiceByName("quartet.v1.Inference")
        method = service.FindMethodByName("Generate")
        request = message_factory.GetMessageClass(method.input_type)(chat_request_json=json.dumps(case.request()))
        generate = channel.unary_stream(
            "/quartet.v1.Inference/Generate", request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString)
        calls = {}
        for response in generate(request, timeout=60):
            if response.HasField("tool_call"):
                delta = response.tool_call
                name, arguments = calls.get(delta.index, (delta.name, ""))
                calls[delta.index] = (name, arguments + delta.arguments)
        reason = method.output_type.fields_by_name["finish"].message_type.fields_by_name["reason"].enum_type
    assert [(name, json.loads(arguments)) for name, arguments in calls.values()] == case.calls
    assert reason.values_by_number[response.finish.reason].name == "FINISH_REASON_TOOL_CALLS"


@pytest.mark.parametrize("case", **by_name([case for case in CALLING if not case.results]))
def test_render_and_parse_show_the_same_as_the_cluster(case):
    def run(command, value, *flags):
        result = subprocess.run([BIN / "quartet", command, "--json", *flags], input=json.dumps(value), text=True,
                                stdout=subprocess.PIPE, check=True)
        return json.loads(result.stdout)

    rendered = run("render", case.request(), "--model", ROOT / "models" / MODEL)
    assert rendered["text"] == case.golden["prompt"]
    assert rendered["ids"] == case.golden["input_ids"]
    text = case.golden["text"].removesuffix("<|observation|>")
    parsed = run("parse", {"request": case.request(), "prompt_tail": rendered["text"], "chunks": list(text)})
    assert [(call["name"], call["arguments"]) for call in parsed["tool_calls"]] == case.calls
    assert parsed["finish_reason"] == "tool_calls"
