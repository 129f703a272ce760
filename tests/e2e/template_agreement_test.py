"""The template interpreter against the reference: Python's jinja2, on 2,000 generated conversations."""

import json
import os
import pathlib
import random
import subprocess

import pytest
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conftest import BIN, ROOT

CONVERSATIONS = 2000
TEMPLATES = [ROOT / "models" / "quartet-demo-exl3" / "chat_template.jinja"]
# The model makers' own are not part of this repository; where somebody has them they are compared too.
if originals := os.environ.get("QUARTET_ORIGINAL_TEMPLATES"):
    TEMPLATES += sorted(pathlib.Path(originals).glob("*.jinja"))

FRAGMENTS = [
    "hello", " ", "\n", "\t", "  \n", "What is 2+2?", "é", "天气", "🌤️", "\u00a0", "\u2028", "\u3000", "'", '"', "\\", "{", "}}",
    "{% if %}", "<think>", "</think>", "<think>a</think>", "<|user|>", "<tool_call>", "</arg_value>", "İ", "ß", "&lt;", "\r\n",
    "\x1c", "None", "0",
]
NAMES = ["add", "get_weather", "ünïcode", "a b", "send_message"]


class Conversations:
    """Draws what a template is given, of all shapes: also those with fields that are missing or odd."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one_of(self, *makers):
        return self.random.choice(makers)()

    def chance(self, percent):
        return self.random.random() * 100 < percent

    def text(self):
        return "".join(self.random.choices(FRAGMENTS, k=self.random.choice([0, 1, 1, 2, 3, 6])))

    def value(self, depth=0):
        scalars = [
            self.text, lambda: self.random.randint(-5, 10**6), lambda: 10**25, lambda: self.random.choice([0.5, -2.0, 1e-7, 1e22, 3.25]),
            lambda: True, lambda: False, lambda: None,
        ]
        nested = [
            lambda: [self.value(depth + 1) for _ in range(self.random.randint(0, 3))],
            lambda: {self.text(): self.value(depth + 1) for _ in range(self.random.randint(0, 3))},
        ]
        return self.one_of(*(scalars + (nested if depth < 3 else [])))

    def part(self):
        return self.one_of(
            lambda: {"type": "text", "text": self.text()},
            lambda: {"type": "text", "text": self.text()},
            lambda: {"type": self.random.choice(["image", "image_url"]), "image_url": {"url": "data:"}},
            lambda: {"type": self.random.choice(["video", "video_url", "input_audio", "other"])},
            self.text,
            lambda: {"text": self.text()},
        )

    def content(self):
        if self.chance(70):
            return self.text()
        return self.one_of(
            lambda: [self.part() for _ in range(self.random.randint(0, 4))],
            lambda: None,
            self.value,
        )

    def tool(self):
        function = {"name": self.random.choice(NAMES), "description": self.text(), "parameters": self.value()}
        for key, make in (("strict", lambda: True), ("defer_loading", lambda: self.chance(50)), ("extra", self.value)):
            if self.chance(20):
                function[key] = make()
        if self.chance(10):
            del function[self.random.choice(["description", "parameters", "name"])]
        if self.chance(1):
            return self.text()
        return function if self.chance(15) else {"type": "function", "function": function}

    def call(self):
        function = {"name": self.random.choice(NAMES), "arguments": {self.text(): self.value() for _ in range(self.random.randint(0, 3))}}
        if self.chance(5):
            del function["arguments"]
        elif self.chance(4):
            function["arguments"] = "{}"  # which the template cannot iterate
        call = {"type": "function", "function": function}
        if self.chance(85):
            call["id"] = f"call_{self.random.randint(0, 4)}"
        return call

    def assistant(self):
        message = {"role": "assistant", "content": self.content()}
        if self.chance(40):
            message["reasoning_content"] = self.one_of(self.text, self.text, self.text, lambda: None)
        if self.chance(50):
            message["tool_calls"] = [self.call() for _ in range(self.random.randint(0, 3))]
        return message

    def results(self, message):
        """What tools answered, mostly to the calls of `message`, in any order, or parts of it."""
        ids = [call.get("id") for call in message.get("tool_calls", [])]
        self.random.shuffle(ids)
        if self.chance(20):
            ids = ids[:-1] + ["call_9"]
        if self.chance(15):
            yield {"role": "tool", "content": [{"tool_call_id": id, "output": self.content()} for id in ids]}
            return
        for id in ids:
            content = self.content()
            if self.chance(10):
                content = [{"type": "tool_reference", "name": self.random.choice(NAMES)} for _ in range(self.random.randint(1, 2))]
            result = {"role": "tool", "content": content}
            if id is not None:
                result["tool_call_id"] = id
            yield result

    def messages(self):
        messages = []
        for _ in range(self.random.randint(0, 6)):
            kind = self.random.random()
            if kind < 0.45:
                messages.append({"role": "user", "content": self.content()})
            elif kind < 0.55:
                messages.append({"role": self.random.choice(["system", "system", "developer"]), "content": self.content()})
            elif kind < 0.6:
                messages.append({"role": "tool", "content": self.content()})
            else:
                messages.append(self.assistant())
                if self.chance(80):
                    messages += self.results(messages[-1])
            if messages and self.chance(6):
                messages[-1].pop(self.random.choice(["role", "content"]), None)
        return messages

    def variables(self):
        made = {"messages": self.messages()}
        if self.chance(60):
            made["tools"] = self.one_of(lambda: None, lambda: [], *[lambda: [self.tool() for _ in range(self.random.randint(1, 4))]] * 6)
        if self.chance(80):
            made["add_generation_prompt"] = self.chance(80)
        if self.chance(50):
            made["reasoning_effort"] = self.random.choice(["low", "high", "max", "medium", "LOW", None])
        if self.chance(40):
            made["clear_thinking"] = self.chance(60)
        if self.chance(10):
            made["enable_thinking"] = False
        return made


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render_with_jinja2(source, conversations):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    template = environment.from_string(source)
    for variables in conversations:
        try:
            yield template.render(**variables)
        except (TemplateError, TypeError):
            yield None


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_the_interpreter_agrees_with_jinja2(path):
    draw = Conversations(seed=20261130)
    conversations = [draw.variables() for _ in range(CONVERSATIONS)]
    expected = list(render_with_jinja2(path.read_text(), conversations))
    lines = "".join(json.dumps(variables, ensure_ascii=False) + "\n" for variables in conversations)
    ours = subprocess.run([BIN / "quartet-render-lines", path], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    got = [json.loads(line) for line in ours.stdout.decode().split("\n")[:-1]]
    assert len(got) == CONVERSATIONS
    wrong = [
        f"{json.dumps(variables, ensure_ascii=False)}\n  jinja2 {text!r}\n  ours   {mine!r}"
        for variables, text, mine in zip(conversations, expected, got) if text != mine
    ]
    assert not wrong, f"{len(wrong)} of {CONVERSATIONS} differ:\n" + "\n".join(wrong[:5])
    # A few conversations cannot be rendered; most must be, or the comparison says little.
    assert CONVERSATIONS * 0.9 < sum(text is not None for text in expected) < CONVERSATIONS
