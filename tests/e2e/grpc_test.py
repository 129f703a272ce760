"""quartet.v1.Inference as a client sees it that has nothing but the address: by reflection."""

import json

import grpc
import jsonschema
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from conftest import at_work, cancelled, golden_cases, wait_until_idle
from tool_cases import ANSWERED, CALLING, by_name

MODEL = "quartet-demo-exl3"
SERVICE = "quartet.v1.Inference"


@pytest.fixture(scope="module")
def channel(cluster):
    with grpc.insecure_channel(cluster.grpc) as made:
        yield made


@pytest.fixture(scope="module")
def service(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services()
    return DescriptorPool(database).FindServiceByName(SERVICE)


def call(channel, service, name, timeout_s=60, **fields):
    method = service.FindMethodByName(name)
    request = message_factory.GetMessageClass(method.input_type)(**fields)
    response = message_factory.GetMessageClass(method.output_type)
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    return make(f"/{SERVICE}/{name}", request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=response.FromString)(request, timeout=timeout_s)


def test_a_reference_answer_comes_token_for_token(channel, service):
    case = golden_cases("prompts.json")[0]
    responses = list(call(channel, service, "Generate", text=case["prompt"], return_token_ids=True))
    assert [token for response in responses for token in response.token_ids] == case["output_ids"]
    assert "".join(response.text for response in responses) + "<|user|>" == case["text"]
    assert responses[-1].finish.completion_tokens == len(case["output_ids"])
    assert not any(response.HasField("finish") for response in responses[:-1])


def test_a_chat_request_is_split(channel, service):
    body = '{"messages":[{"role":"user","content":"Which country has the capital Reykjavik?"}]}'
    responses = list(call(channel, service, "Generate", chat_request_json=body))
    assert "".join(response.reasoning for response in responses) == "Reykjavik is the capital of Iceland."
    assert "".join(response.text for response in responses) == "Reykjavik is the capital of Iceland."


def typed_chat(case, **more):
    """A tool case as typed messages."""
    tools = [{"name": tool["function"]["name"], "description": tool["function"]["description"],
              "parameters_json": json.dumps(tool["function"]["parameters"])} for tool in case.tools]
    return {"messages": [{"role": "user", "content": case.question}], "tools": tools, "reasoning_effort": case.effort, **more}


def calls_of(responses):
    calls = []
    for delta in (response.tool_call for response in responses if response.HasField("tool_call")):
        if delta.id:
            assert delta.index == len(calls)
            calls.append([delta.id, delta.name, ""])
        calls[delta.index][2] += delta.arguments
    return calls


@pytest.mark.parametrize("case", **by_name(CALLING))
def test_typed_chats_call_tools(channel, service, case):
    responses = list(call(channel, service, "Generate", chat=typed_chat(case)))
    assert [(name, json.loads(arguments)) for _, name, arguments in calls_of(responses)] == case.calls
    assert responses[-1].finish.reason == 4, "FINISH_REASON_TOOL_CALLS"
    if not case.results:
        assert responses[-1].finish.prompt_tokens == len(case.golden["input_ids"])
        assert responses[-1].finish.completion_tokens == len(case.golden["output_ids"])


@pytest.mark.parametrize("case", **by_name(ANSWERED))
def test_results_go_back_and_are_answered(channel, service, case):
    chat = typed_chat(case)
    responses = list(call(channel, service, "Generate", chat=chat))
    calls = calls_of(responses)
    reasoning = "".join(response.reasoning for response in responses)
    chat["messages"].append({"role": "assistant", "reasoning": reasoning, "tool_calls": [
        {"id": id, "name": name, "arguments_json": arguments} for id, name, arguments in calls]})
    chat["messages"] += [{"role": "tool", "tool_call_id": id, "content": result}
                         for (id, _, _), result in zip(calls, case.results, strict=True)]
    answer = list(call(channel, service, "Generate", chat=chat))
    # The same prompt as that of the reference, token for token.
    assert answer[-1].finish.prompt_tokens == len(case.golden["input_ids"])
    assert ["".join(response.reasoning for response in answer), "".join(response.text for response in answer)] == case.answer()


def test_a_form_holds(channel, service):
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "dry": {"type": "boolean"}},
              "required": ["colour", "dry"], "additionalProperties": False}
    chat = {"messages": [{"role": "user", "content": "What is 12 + 30?"}]}
    responses = list(call(channel, service, "Generate", chat=chat, max_tokens=200, thinking_token_budget=24,
                          form={"json_schema": json.dumps(schema)}))
    jsonschema.validate(json.loads("".join(response.text for response in responses)), schema)
    assert responses[-1].finish.reasoning_tokens <= 25


def test_logprobs_and_choices(channel, service):
    case = golden_cases("prompts.json")[0]
    responses = list(call(channel, service, "Generate", text=case["prompt"], n=2, logprobs=True, top_logprobs=2,
                          prompt_logprobs=1, return_token_ids=True))
    for choice in (0, 1):
        of_choice = [response for response in responses if response.choice == choice]
        assert list(of_choice[0].prompt_token_ids) == case["input_ids"]
        tokens = [token for response in of_choice for token in response.logprobs]
        assert [token.id for token in tokens] == case["output_ids"]
        assert all(len(token.top) == 2 and token.top[0].id == token.id for token in tokens)
        prompt = [token for response in of_choice for token in response.prompt_logprobs]
        assert [token.id for token in prompt] == case["input_ids"]
        assert [token.HasField("logprob") for token in prompt] == [False] + [True] * (len(prompt) - 1)


def test_a_deadline_that_passes_and_a_call_that_is_cancelled_leave_nothing_at_work(cluster, channel, service):
    endless = {"text": "Once", "max_tokens": 3500, "ignore_eos": True}
    # The engine keeps to the deadline too, and whichever notices first ends the request.
    responses = call(channel, service, "Generate", timeout_s=3, **endless)
    with pytest.raises(grpc.RpcError) as raised:
        for _ in responses:
            pass
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until_idle(cluster)
    with cancelled(cluster):
        responses = call(channel, service, "Generate", **endless)
        next(responses)
        assert at_work(cluster) > 0
        responses.cancel()
        with pytest.raises(grpc.RpcError) as raised:
            for _ in responses:
                pass
        assert raised.value.code() == grpc.StatusCode.CANCELLED


def test_errors(channel, service):
    with pytest.raises(grpc.RpcError) as raised:
        list(call(channel, service, "Generate", text="x", model="other"))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_the_model(channel, service):
    model = call(channel, service, "GetModel")
    assert (model.id, model.vocab_size) == (MODEL, 2048)


def test_health(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        reply = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
