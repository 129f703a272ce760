"""quartet.v1.Inference as a client sees it that has nothing but the address: by reflection."""

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from conftest import golden_cases, serve

MODEL = "quartet-demo-exl3"
SERVICE = "quartet.v1.Inference"


@pytest.fixture(scope="module")
def channel():
    with serve(MODEL, 2) as cluster, grpc.insecure_channel(cluster.grpc) as made:
        yield made


@pytest.fixture(scope="module")
def service(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services()
    return DescriptorPool(database).FindServiceByName(SERVICE)


def call(channel, service, name, **fields):
    method = service.FindMethodByName(name)
    request = message_factory.GetMessageClass(method.input_type)(**fields)
    response = message_factory.GetMessageClass(method.output_type)
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    return make(f"/{SERVICE}/{name}", request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=response.FromString)(request, timeout=60)


def test_a_reference_answer_comes_token_for_token(channel, service):
    case = golden_cases("prompts.json")[0]
    responses = list(call(channel, service, "Generate", text=case["prompt"], return_token_ids=True))
    assert [token for response in responses for token in response.token_ids] == case["output_ids"]
    assert "".join(response.text for response in responses) + "<|user|>" == case["text"]
    assert responses[-1].finish.completion_tokens == len(case["output_ids"])
    assert not any(response.HasField("finish") for response in responses[:-1])


def test_a_chat_request_is_split(channel, service):
    json = '{"messages":[{"role":"user","content":"Which country has the capital Reykjavik?"}]}'
    responses = list(call(channel, service, "Generate", chat_request_json=json))
    assert "".join(response.reasoning for response in responses) == "Reykjavik is the capital of Iceland."
    assert "".join(response.text for response in responses) == "Reykjavik is the capital of Iceland."


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
