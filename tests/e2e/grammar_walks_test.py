"""Answers that nothing but a grammar's masks has guided, against jsonschema: 300 generated schemas."""

import json
import math
import random
import subprocess

import pytest
from jsonschema import Draft202012Validator

import schemas as e2e_schemas
from conftest import BIN, ROOT

SCHEMAS = 300
WALKS = 8
NAMES = ["name", "n", "a b", "größe", "天气", "quote\"d", "back\\slash", "line\nbreak", "$ref", "type", "na", "names"]


class Schemas:
    """Draws schemas of the supported keywords, nested, with references to their definitions and to themselves."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, percent):
        return self.random.random() * 100 < percent

    def draw(self):
        schema = self.schema(3)
        if self.chance(50):
            schema = {"type": "object", "properties": {"top": schema, "again": {"$ref": "#/$defs/node"}}, "required": ["top"]}
            schema["$defs"] = {"node": self.node(), "leaf": self.scalar()}
        return schema

    def node(self):
        link = self.random.choice([{"$ref": "#/$defs/node"}, {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}])
        kids = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": self.random.randint(1, 3)}
        properties = {"value": {"$ref": "#/$defs/leaf"}, "kids": kids, "next": link}
        return {"type": "object", "properties": properties, "required": ["value"], "additionalProperties": self.chance(50)}

    def schema(self, depth):
        if depth <= 0:
            return self.scalar()
        return self.random.choice([self.object, self.object, self.array, self.tuple, self.union, self.all_of, self.scalar_at])(depth)

    def scalar_at(self, _):
        return self.scalar()

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randint(0, 4))
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        schema["required"] = [name for name in names if self.chance(60)]
        if self.chance(30):
            schema["additionalProperties"] = self.random.choice([False, True, {"type": "integer"}, {"type": "string", "maxLength": 4}])
        elif self.chance(20):
            del schema["properties"], schema["required"]
            schema["maxProperties"] = self.random.randint(0, 3)
        return schema

    def array(self, depth):
        schema = {"type": "array", "items": self.schema(depth - 1)}
        if self.chance(60):
            schema["minItems"] = self.random.randint(0, 2)
            schema["maxItems"] = schema["minItems"] + self.random.randint(0, 4)
        return schema

    def tuple(self, depth):
        schema = {"type": "array", "prefixItems": [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]}
        if self.chance(70):
            schema["items"] = self.random.choice([False, {"type": "boolean"}])
        if self.chance(50):
            schema["minItems"] = self.random.randint(0, len(schema["prefixItems"]))
        return schema

    def union(self, depth):
        branches = [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]
        return {"anyOf": branches} if self.chance(80) else {"title": "either", "oneOf": [{"type": "null"}, {"type": "boolean"}]}

    def all_of(self, depth):
        parts = [self.object(depth - 1) for _ in range(2)]
        # Two objects that refuse each other's properties leave nothing to say about them.
        for part in parts:
            part.pop("additionalProperties", None)
            if "maxProperties" in part:
                part.clear()
                part["type"] = "object"
        shared = set(parts[0].get("properties", {})) & set(parts[1].get("properties", {}))
        for name in shared:
            parts[1]["properties"][name] = parts[0]["properties"][name]
        return {"allOf": parts}

    def scalar(self):
        return self.random.choice([self.string, self.string, self.integer, self.number, self.choice, self.simple])()

    def simple(self):
        return self.random.choice([{"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}, {"type": "integer"}, {"type": "number"}])

    def string(self):
        if self.chance(30):
            pattern = self.random.choice(
                ["^[a-z]{2,5}$", "^\\d{4}-\\d{2}-\\d{2}$", "^(red|gr(ee|a)n|blue)$", "e", "^[A-ZÄÖÜ]\\w*$", "^[^\"\\\\]{0,3}\"\\\\$"]
            )
            return {"type": "string", "pattern": pattern}
        schema = {"type": "string"}
        if self.chance(50):
            schema["minLength"] = self.random.randint(0, 6)
        if self.chance(60):
            schema["maxLength"] = schema.get("minLength", 0) + self.random.randint(0, 12)
        if self.chance(20):
            schema["format"] = "uuid"
        return schema

    def integer(self):
        low = self.random.randint(-200, 200)
        schema = {"type": "integer"}
        if self.chance(80):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(80):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.randint(2, 5000)
        return schema

    def number(self):
        low = self.random.randint(-3000, 3000) / 100
        schema = {"type": "number"}
        if self.chance(80):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(80):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = round(low + self.random.randint(1, 900) / 100, 2)
        return schema

    def choice(self):
        values = ["red", "redder", "grün", 1, -2.5, None, True, {"a": [1, "x"]}, [], "\"\n"]
        if self.chance(25):
            return {"const": self.random.choice(values)}
        return {"enum": self.random.sample(values, self.random.randint(1, 5))}


def walk(schemas, walks, *flags):
    """What quartet-grammar-walks makes of them, line by line."""
    lines = "".join(json.dumps(schema, ensure_ascii=False) + "\n" for schema in schemas)
    command = [BIN / "quartet-grammar-walks", ROOT / "models" / "quartet-demo-exl3", str(walks), *flags]
    run = subprocess.run(command, input=lines.encode(), capture_output=True)
    assert run.returncode == 0, run.stderr.decode()
    for line in run.stdout.decode().strip("\n").split("\n"):  # splitlines would cut strings at U+2028
        result = json.loads(line)
        assert "error" not in result, f"{result['error']}: {json.dumps(schemas[result['schema']])}"
        yield result


@pytest.mark.parametrize("seed", [1])
def test_every_answer_is_json_that_satisfies_its_schema(seed):
    schemas = Schemas(seed)
    drawn = [schemas.draw() for _ in range(SCHEMAS)]
    for schema in drawn:
        Draft202012Validator.check_schema(schema)
    answers = unfinished = 0
    answered = set()
    for result in walk(drawn, WALKS):
        schema = drawn[result["schema"]]
        if "unfinished" in result:
            unfinished += 1
            continue
        value = json.loads(result["text"])
        errors = [error.message for error in Draft202012Validator(schema).iter_errors(value)]
        assert not errors, f"{errors}\n{result['text']}\n{json.dumps(schema, ensure_ascii=False)}"
        answers += 1
        answered.add(result["schema"])
    print(f"{answers} answers by {len(answered)} schemas, {unfinished} unfinished")
    assert len(answered) == SCHEMAS
    assert unfinished <= answers / 50


def test_no_answer_is_longer_than_its_schema_allows():
    """Though the walks want to go on for as long as they can."""
    drawn = [e2e_schemas.schema_number(index) for index in range(SCHEMAS)]
    drawn = [schema for schema in drawn if e2e_schemas.longest(schema) < math.inf]
    answers = 0
    for result in walk(drawn, WALKS, "long"):
        schema = drawn[result["schema"]]
        assert "unfinished" not in result, json.dumps(schema, ensure_ascii=False)
        e2e_schemas.validate(result["text"], schema)
        assert len(result["text"].encode()) <= e2e_schemas.longest(schema), result["text"]
        answers += 1
    print(f"{answers} answers by {len(drawn)} schemas of bounded length")
    assert answers == WALKS * len(drawn) > SCHEMAS
