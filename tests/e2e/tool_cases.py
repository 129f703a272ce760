"""Reference answers that call tools, as conversations."""

import json
import re

from conftest import golden_cases

MODEL = "quartet-demo-exl3"


class Case:
    """One of them: the tools, the user's message, and the calls that the model makes."""

    def __init__(self, golden):
        prompt = golden["prompt"]
        self.golden = golden
        self.name = f"{golden['id']}-{golden['skill']}"
        self.effort = golden["effort"].lower()
        block = re.search(r"<tools>\n(.*?)\n</tools>\n", prompt, re.DOTALL).group(1)
        self.tools = [{"type": "function", "function": json.loads(line)} for line in block.split("\n")]
        self.question = re.search(r"<\|user\|>(.*?)<\|", prompt).group(1)
        # The calls are in the answer, or in the prompt if that holds the tools' results already.
        history = prompt[prompt.index("<|user|>"):]
        self.results = re.findall(r"<tool_response>(.*?)</tool_response>", history)
        self.calls = [self.call(text) for text in re.findall(r"<tool_call>(.*?)</tool_call>", history + golden["text"])]

    def call(self, text):
        name, *arguments = re.split(r"<arg_key>|</arg_value>", text)
        properties = next(tool["function"] for tool in self.tools if tool["function"]["name"] == name)["parameters"]["properties"]
        pairs = [argument.split("</arg_key><arg_value>") for argument in arguments if argument]
        return name, {key: value if properties[key]["type"] == "string" else json.loads(value) for key, value in pairs}

    def request(self, **more):
        """Of a chat completion."""
        return {"model": MODEL, "tools": self.tools, "reasoning_effort": self.effort,
                "messages": [{"role": "user", "content": self.question}], **more}

    def answer(self):
        """Reasoning and content of the reference answer that follows results."""
        return self.golden["text"].removesuffix("<|user|>").split("</think>")


CASES = [Case(case) for case in golden_cases("prompts.json") if case["skill"].startswith("tool_")]
CALLING = [case for case in CASES if case.calls]
PARALLEL = [case for case in CALLING if len(case.calls) > 1 and not case.results]
ANSWERED = [case for case in CASES if case.results]


def by_name(cases):
    return {"argvalues": cases, "ids": [case.name for case in cases]}
