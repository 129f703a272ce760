"""JSON Schemas for tests of structured output, how long answers to them can become, and what a cut answer must be."""

import json
import math
import random
import re

import jiter
import jsonschema

KEYS = ["name", "größe", "日本", "a b", 'q"uote', "emoji 😀", "back\\slash", "$ref", "n"]
# The answers to a pattern, and the longest of them.
PATTERNS = {"^[a-f]{2,4}-[0-9]{3}$": 8, "^(red|gr(ee|a)n)$": 5, "^\\d{4}-\\d{2}-\\d{2}$": 10, "^[\"\\\\é]{1,3}$": 6}


def scalar(rng):
    low = rng.randint(-500, 500)
    return rng.choice([
        {"type": "null"},
        {"type": "boolean"},
        {"type": "integer"},
        {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 2000)},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "integer", "minimum": low},
        {"type": "number"},
        {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.randint(1, 50)},
        {"type": "number", "exclusiveMinimum": low / 100, "maximum": low / 100 + 0.05},
        {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 12)},
        {"type": ["string", "null"], "maxLength": 5, "format": "date"},
        {"type": "string", "pattern": rng.choice(list(PATTERNS))},
        {"enum": ["red", "green", 3, None, -0.5, {"deep": [1, "天"]}]},
        {"const": rng.choice(["Zürich", "line\nbreak", [], {"a": {"b": None}}])},
    ])


def tagged_union(inner):
    """Of objects that differ by a required constant, as languages with sum types write them."""
    def variant(kind):
        return {"type": "object", "properties": {"kind": {"const": kind}, "value": inner()},
                "required": ["kind", "value"], "additionalProperties": False}

    return {"oneOf": [variant("left"), variant("rechts"), {"type": "null"}]}


def two_parts(rng, inner):
    return {"type": "object", "allOf": [
        {"properties": {key: inner()}, "required": [key]} for key in rng.sample(KEYS, 2)]}


def bounded(rng, depth):
    """A schema of which no answer is longer than `longest` says."""
    if depth == 0 or rng.random() < 0.25:
        return scalar(rng)
    inner = lambda: bounded(rng, depth - 1)  # noqa: E731
    kind = rng.randrange(7)
    if kind == 0:
        return {"type": "array", "items": inner(), "minItems": rng.randint(0, 2), "maxItems": 3}
    if kind == 1:
        return {"anyOf": [inner(), inner()]}
    if kind == 2:
        tuple_of = {"type": "array", "prefixItems": [inner(), inner()], "minItems": rng.randint(0, 2)}
        return {**tuple_of, "items": False} if rng.random() < 0.5 else tuple_of
    if kind == 3:
        return tagged_union(inner)
    if kind == 4:
        return two_parts(rng, inner)
    keys = rng.sample(KEYS, rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {key: inner() for key in keys},
        "required": [key for key in keys if rng.random() < 0.7],
        "additionalProperties": False,
    }


def unbounded(rng):
    """Strings, lists and objects without a limit."""
    return {
        "type": "object",
        "properties": {"text": {"type": "string"}, "words": {"type": "array", "items": scalar(rng)},
                       "rest": {"type": "object", "additionalProperties": scalar(rng)}},
        "required": rng.sample(["text", "words", "rest"], 2),
    }


def recursive(rng):
    """Lists, trees, and two that refer to one another; each branch may end at any place."""
    link = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
    node = {"type": "object", "properties": {"v": scalar(rng)}, "required": ["v"], "additionalProperties": False}
    kind = rng.randrange(3)
    if kind == 0:
        node["properties"]["next"] = link
        node["required"].append("next")
    elif kind == 1:
        node["properties"]["kids"] = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
    else:
        node["properties"]["andere"] = {"type": "array", "prefixItems": [{"$ref": "#/$defs/other"}], "items": False}
    other = {"type": "object", "properties": {"back": link}, "required": ["back"], "additionalProperties": False}
    return {"$defs": {"node": node, "other": other}, "$ref": "#/$defs/node"}


def schema_number(index):
    rng = random.Random(index)
    if index % 10 == 9:
        return recursive(rng)
    if index % 20 == 4:
        return unbounded(rng)
    return {
        "type": "object",
        "properties": {"x": bounded(rng, 2), "y": bounded(rng, 1)},
        "required": ["x", "y"],
        "additionalProperties": False,
    }


def spelled(value):
    return len(json.dumps(value, ensure_ascii=False).encode())


def longest_of_type(schema, name):
    if name == "null":
        return 4
    if name == "boolean":
        return 5
    if name == "integer":
        bounds = [schema.get("minimum", -10**18 + 1), schema.get("maximum", 10**18 - 1)]
        return max(len(str(bound)) for bound in bounds)
    if name == "number":
        bounds = [bound for key, bound in schema.items() if key.lower().endswith("imum")]
        # The bounds here have up to 20 digits behind the point, answers one more than the bounds. Without bounds
        # there are a sign, 18 digits, a point, 16 digits, e, a sign and two digits.
        return max(len(str(int(bound))) for bound in bounds) + 24 if bounds else 40
    if name == "string":
        # A character can take two escapes of six bytes.
        characters = PATTERNS.get(schema.get("pattern"), 12 * schema.get("maxLength", math.inf))
        return 2 + (2 * characters if "pattern" in schema else characters)
    if name == "array":
        first = [longest(item) for item in schema.get("prefixItems", [])]
        items = schema.get("items", not first)
        count = schema.get("maxItems", math.inf) if items else 0
        more = count * (2 + longest(items)) if count else 0
        return 2 + sum(2 + item for item in first) + more
    members = sum(4 + spelled(key) + longest(value) for key, value in schema.get("properties", {}).items())
    return 2 + members + (math.inf if schema.get("additionalProperties", "properties" not in schema) else 0)


def longest(schema):
    """No answer has more bytes. Infinite if there is no such limit."""
    if schema is True or "$ref" in schema:
        return math.inf
    if "const" in schema or "enum" in schema:
        return max(spelled(value) for value in schema.get("enum", [schema.get("const")]))
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return max(longest(part) for part in schema[union])
    if "allOf" in schema:
        return 2 + sum(longest(part) for part in schema["allOf"])
    names = schema.get("type", "object")
    return max(longest_of_type(schema, name) for name in ([names] if isinstance(names, str) else names))


def validate(text, schema):
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


def relaxed(schema):
    """The same for values of which the rest is still missing."""
    if isinstance(schema, list):
        return [relaxed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key in ("required", "minItems", "const", "enum"):
            continue
        # Each value of these is a schema, whatever its name.
        named = key in ("properties", "$defs")
        kept["anyOf" if key == "oneOf" else key] = (
            {name: relaxed(part) for name, part in value.items()} if named else relaxed(value))
    return kept


def validate_beginning(text, schema):
    """What is there of a cut answer is JSON that fits."""
    complete = re.sub(r"-?[0-9][0-9.eE+-]*$", "", text)  # there may have been more digits
    value = jiter.from_json(complete.encode(), partial_mode=True)
    jsonschema.validate(value, relaxed(schema), jsonschema.Draft202012Validator)
