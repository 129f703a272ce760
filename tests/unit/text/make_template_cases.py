#!/usr/bin/env python3
"""Writes template_cases.json: small templates with what the reference Jinja renders from them.

    pip install jinja2==3.1.6 && python3 make_template_cases.py > template_cases.json
"""
import json

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    return env


V = {
    "name": "Ada", "n": 3, "f": 2.5, "t": True, "no": False, "nil": None, "empty": "", "zero": 0,
    "list": [3, 1, 2], "words": ["alpha", "Beta", "gamma"], "none_in": [None, True, "x", 1.5, {"k": [1]}],
    "map": {"b": 1, "a": {"c": [10, 20]}, "items_": 5}, "uni": "h\u00e9llo \u4f60\u597d \U0001F600",
    "pad": " \t x y \n", "people": [{"name": "a", "age": 3, "ok": True}, {"name": "b", "age": 5}, {"name": "c", "age": 4, "ok": False}],
    "quote": "it's \"so\"\n", "items": {"x": 1}, "nested": [[1, "a"], [2, "b"]], "long": "l1\nl2\n\nl3",
}

CASES = {
    "text and white space": [
        "a\n", "a\n\n", "\na", "a {{ name }} b", "{{ name }}\nx", "{% if t %}\nx\n{% endif %}\ny",
        "  {% if t %}\n  x\n  {% endif %}\n  y", "a  {% if t %}  b  {% endif %}  c", "a \n {%- if t -%} \n b \n {%- endif -%} \n c",
        "a\n {{- name -}} \n b", "a {{+ name }}", "  {%+ if t %}x{% endif %}", "{% if t +%}\nx{% endif %}", "a{# c #}b", "a\n  {# c #}\nb",
        "a {#- c -#} b", "{#-#}x", "{# {{ }} {% #}x", "{% raw %}{{ x }}{% y %}{% endraw %}z", "a {%- raw -%} {{ x }} {%- endraw -%} b",
        "{% raw %}\n{{ x }}\n{% endraw %}\nz", "{", "{ {", "a}}b%}", "x\r\ny\rz", "{{ 'a' }}{{ 'b' }}\n\n", "   {% set x = 1 %}\n{{ x }}",
        "{{ name }}   {% if t %}  \n  q{% endif %}", "\t{% if t %}\n\tq\n\t{% endif %}", "x {% set y = 2 -%}\n\n  z", "{%- if t %} a{% endif -%}  ",
        "  {{ name }}\n  {% if t %}\n", 
    ],
    "printing": [
        "{{ nil }} {{ t }} {{ no }} {{ n }} {{ f }} {{ missing }}|", "{{ list }} {{ map }} {{ none_in }}", "{{ [quote] }}", "{{ ['a\\\\b', \"it's\"] }}",
        "{{ 1.0 }} {{ 1e3 }} {{ 1_000 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ 1e20 }} {{ 0.1 + 0.2 }}", "{{ [] }} {{ {} }} {{ {'a': 1, 'b': [none]} }}", "{{ uni }} {{ [uni] }}",
    ],
    "literals": [
        "{{ 'a\\nb\\t\\'q\\' \\\\ \\x41 \\u00e9 \\q' }}", '{{ "a" \'b\' "c" }}', "{{ true }}{{ True }}{{ false }}{{ none }}{{ None }}", "{{ [1, 'a', [2]] }}",
        "{{ {'a': {'b': 2}}.a.b }}", "{{ {'x': 1}['x'] }}", "{{ (1) }}", "{{ (1, 2)[1] }}", "{{ [1, 2,] }}", "{{ 'a' 'b' ~ 1 }}", "{{ {'}}': '%}'}['}}'] }}",
    ],
    "arithmetic": [
        "{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7.5 % 2 }}", "{{ n - 1 }} {{ -n }} {{ +n }} {{ - n + 5 }}",
        "{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ [1] + [2] }}", "{{ 1 ~ 'a' ~ none ~ true ~ 1.5 }}", "{{ 2 ** 3 ** 2 }}", "{{ -2 ** 2 }}", "{{ 1 - 1 - 1 }} {{ 8 / 2 / 2 }}",
        "{{ 'a' ~ 1 + 2 }}", "{{ -1 | abs }}", "{{ n * 2 ~ 'x' }}", "{{ t + 1 }}",
    ],
    "comparison and logic": [
        "{{ 1 < 2 }} {{ 2 <= 2 }} {{ 1 > 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ 1 != 2 }}", "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 }}",
        "{{ 2 in list }} {{ 9 not in list }} {{ 'da' in name }} {{ 'b' in map }} {{ 'z' in map }}", "{{ not t }} {{ not no and t }} {{ not (t and no) }}", "{{ empty or 'd' }} {{ name and n }} {{ zero or nil }} {{ nil and 1 }}",
        "{{ 'x' if t else 'y' }} {{ 'x' if no else 'y' }} {{ 'x' if no }}|", "{{ 'a' if no else 'b' if t else 'c' }}", "{{ missing == nil }} {{ missing == other }} {{ missing is defined }}", "{{ list == [3, 1, 2] }} {{ map == {'b': 1} }}",
        "{{ t and not no or n > 5 }}", "{{ 1 in missing }}", "{{ not 'a' in 'abc' }}", "{{ none == none }} {{ nil == none }}", "{{ 1 if t }}{{ (2 if no) is defined }}",
    ],
    "tests": [
        "{{ name is string }} {{ n is string }} {{ map is mapping }} {{ list is mapping }} {{ nil is none }} {{ n is not none }}", "{{ list is iterable }} {{ name is iterable }} {{ map is iterable }} {{ n is iterable }} {{ missing is iterable }}",
        "{{ list is sequence }} {{ name is sequence }} {{ n is sequence }}", "{{ n is number }} {{ f is number }} {{ t is number }} {{ name is number }} {{ n is integer }} {{ f is float }} {{ t is integer }}", "{{ t is boolean }} {{ n is boolean }} {{ t is true }} {{ no is false }} {{ n is true }}",
        "{{ missing is undefined }} {{ map.zz is undefined }} {{ map.b is defined }}", "{{ n is equalto 3 }} {{ n is eq(4) }} {{ n is ne 4 }} {{ n is gt 2 }} {{ n is in [3] }}", "{{ n is odd }} {{ n is even }}", "{{ not name is string }}", "{{ name is string and n is number }}",
        "{{ 'y' if name is string else 'z' }}", "{{ name ~ n is string }}", "{{ 'abc' is lower }} {{ 'ABC' is upper }}", "{{ map.items is defined }}",
    ],
    "lookups": [
        "{{ map.b }} {{ map['b'] }} {{ map.a.c[1] }} {{ map['a']['c'][-1] }} {{ map.a.c.0 }}", "{{ list[0] }} {{ list[-1] }} {{ list[9] }}|{{ list.5 }}|", "{{ name[0] }} {{ name.0 }} {{ name[-1] }} {{ uni[1] }} {{ uni[6] }}", "{{ nested.0.1 }} {{ nested[1].0 }}",
        "{{ name.foo }}|{{ n.foo }}|{{ nil.foo }}|{{ list.foo }}|{{ map.zz }}|", "{{ list[1:] }} {{ list[:1] }} {{ list[::-1] }} {{ list[-2:] }} {{ list[0:9:2] }} {{ list[5:] }}", "{{ name[1:] }} {{ uni[::-1] }} {{ uni[1:7] }} {{ name[:-1] }}", "{{ list[n - 2] }}", "{{ items.x }} {{ items['x'] }}",
        "{{ people[0]['name'] }}{{ people[1].ok }}|", "{{ map['zz'] }}|{{ map[1] }}|{{ list['a'] }}|", "{{ 'abc'[1] }}{{ [1,2][0] }}", "{{ list[:-5] }} {{ list[2:0:-1] }} {{ list[-9:2] }}",
    ],
    "filters": [
        "{{ name | upper }} {{ name | lower }} {{ 'hELLO wORLD' | capitalize }} {{ 'hello big-world' | title }}", "[{{ pad | trim }}] [{{ 'xxaxx' | trim('x') }}]", "{{ list | length }} {{ uni | length }} {{ map | count }} {{ missing | length }}", "{{ words | join(', ') }} {{ list | join }} {{ people | join('-', attribute='name') }} {{ none_in | join('|') }}",
        "{{ missing | default('d') }} {{ empty | default('d') }}|{{ empty | default('d', true) }} {{ nil | d('x') }} {{ nil | d('x', boolean=true) }} {{ missing | d }}|", "{{ list | first }} {{ list | last }} {{ name | first }} {{ [] | first }}|", "{{ 'abc' | list }} {{ map | list }}", "{{ n | string ~ 'x' }} {{ '12' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ ' 42 ' | int }}",
        "{{ '1.5' | float + 1 }} {{ n | float }} {{ 'q' | float }}", "{{ 'aXbX' | replace('X', '-') }} {{ 'aXbX' | replace('X', '-', 1) }}", "{{ people | selectattr('ok') | map(attribute='name') | list }}", "{{ people | rejectattr('ok') | map(attribute='name') | join(',') }}", "{{ people | selectattr('age', 'gt', 3) | map(attribute='name') | list }} {{ people | selectattr('name', 'equalto', 'a') | list | length }}",
        "{{ people | selectattr('ok', 'defined') | list | length }} {{ people | map(attribute='ok', default='?') | list }}", "{{ words | map('upper') | list }} {{ words | map('replace', 'a', 'o') | join(' ') }}", "{{ list | select('gt', 1) | list }} {{ list | reject('odd') | list }} {{ [0, 1, ''] | select | list }}", "{{ long | indent }}|{{ long | indent(2, true) }}|{{ long | indent(2, blank=true) }}|{{ long | indent('> ') }}",
        "{{ list | reverse | list }} {{ name | reverse }}", "{{ map | items | list | length }}{% for k, v in map | items %}{{ k }};{% endfor %}", "{{ '<b>' | safe }}", "{{ name | upper | lower | length }}", "{{ -3 | abs }} {{ -2.5 | abs }}", "{{ 'a' | upper ~ 'b' }}", "{{ words | first | upper }}",
    ],
    "tojson": [
        "{{ map | tojson }} {{ uni | tojson }} {{ quote | tojson }} {{ nil | tojson }} {{ t | tojson }} {{ f | tojson }}", "{{ map | tojson(indent=2) }}", "{{ [] | tojson(indent=2) }} {{ {} | tojson(indent=4) }} {{ [[]] | tojson(indent=1) }}", "{{ uni | tojson(ensure_ascii=True) }} {{ map | tojson(sort_keys=true) }} {{ map | tojson(separators=(',', ':')) }}", "{{ '<&>\u2028' | tojson(ensure_ascii=False) }}", "{{ none_in | tojson }}",
    ],
    "methods": [
        "{{ name.upper() }} {{ name.lower() }} {{ 'aBC'.capitalize() }}", "[{{ pad.strip() }}] [{{ pad.lstrip() }}] [{{ pad.rstrip() }}] [{{ 'xaxx'.strip('x') }}] [{{ 'ab\\n\\n'.rstrip('\\n') }}]", "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b  c '.split(none, 1) }}", "{{ 'a</t>b</t>c'.split('</t>')[-1] }} {{ 'abc'.split('x') }} {{ ''.split(',') }} {{ ''.split() }}",
        "{{ name.startswith('A') }} {{ name.endswith('A') }} {{ name.startswith(('x', 'A')) }}", "{{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '', 1) }} {{ 'ab'.replace('', '.') }}", "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}", "{{ map.keys() | list }} {{ map.values() | list }} {{ map.get('b') }} {{ map.get('zz') }} {{ map.get('zz', 7) }}", "{{ 'abcabc'.find('ca') }} {{ 'abc'.find('z') }} {{ 'abcabc'.count('bc') }} {{ uni.find('\u4f60') }}", "{{ '-'.join(words) }} {{ 'a\\nb\\r\\nc'.splitlines() }}",
        "{{ (name ~ 'x').upper() }} {{ words[0].upper() }}", "{{ items.items() | list | length }}",
    ],
    "statements": [
        "{% if no %}a{% elif n == 3 %}b{% else %}c{% endif %}", "{% if missing %}a{% endif %}{% if not missing %}b{% endif %}", "{% set x = 1 %}{% set x = x + 1 %}{{ x }}", "{% set a, b = [1, 2] %}{{ a }}{{ b }}", "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x | length }}", "{% if t %}{% set x = 5 %}{% endif %}{{ x }}", "{% if no %}{% set x = 5 %}{% endif %}{{ x }}|",
        "{% set ns = namespace(a=1, b='q') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}|", "{% set ns = namespace() %}{% for x in list %}{% set ns.s = (ns.s or 0) + x %}{% endfor %}{{ ns.s }}",
    ],
    "loops": [
        "{% for x in list %}{{ x }},{% endfor %}", "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %}", "{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for k, v in nested %}{{ k }}{{ v }}{% endfor %}", "{% for (k, v) in nested %}{{ k }}{{ v }}{% endfor %}",
        "{% for x in [] %}a{% else %}b{% endfor %}{% for x in missing %}a{% else %}c{% endfor %}", "{% for x in list if x > 1 %}{{ loop.index }}{{ x }}{{ loop.length }};{% else %}none{% endfor %}", "{% for x in list if x > 9 %}{{ x }}{% else %}none{% endfor %}", "{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for k in map %}{{ k }}{% endfor %} {% for c in 'a\u4f60' %}{{ c }}.{% endfor %}",
        "{% set x = 'o' %}{% for i in list %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% for i in range(3) %}{{ i }}{% endfor %} {{ range(2, 5) | list }} {{ range(5, 0, -2) | list }}", "{% for a in nested %}{% for b in a %}{{ loop.index }}{{ b }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for x in list %}{% for y in list %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %}{{ x }}{% endfor %}", "{% for n in [9] %}{{ n }}{% endfor %}{{ n }}", "{% for x in list[1:] %}{{ x }}{% endfor %}", "{% for p in people %}{{ p.name }}{% if not loop.last %}, {% endif %}{% endfor %}",
        "{% for x in list %}\n  {{ x }}\n{% endfor %}\nend", "{% for i in range(2) %}{% if i %}{% set q = 1 %}{% endif %}{{ q }}|{% endfor %}",
    ],
    "macros": [
        "{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}x{% endmacro %}{{ a() }}", "{% if t %}{% macro m() %}y{% endmacro %}{% endif %}{{ m() }}", "{% macro m(x) %}{% if x %}1{% endif %}{% endmacro %}{% if m(1) %}T{% endif %}{% if m(0) %}F{% endif %}{{ m(1) == '1' }}",
        "{% set g = 'G' %}{% macro m() %}{{ g }}{{ n }}{{ x }}{% endmacro %}{% for x in [1] %}{{ m() }}{% endfor %}", "{% macro m() %}{{ g }}{% endmacro %}{% set g = 1 %}{{ m() }}{% set g = 2 %}{{ m() }}", "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}", "{% macro m(a) %}{% set a = a + 1 %}{{ a }}{% endmacro %}{{ m(1) }}{{ a }}|", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(missing) }}{{ m(1) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(5) }}",
        "{% macro m() %}\n  x\n{% endmacro %}\n[{{ m() }}]", "{% macro m(ns) %}{% set ns.x = 9 %}{% endmacro %}{% set q = namespace(x=1) %}{{ m(q) }}{{ q.x }}", "{% macro m() %} a {% endmacro %}{{ m() | trim | upper }}{{ m().strip() }}",
    ],
    "errors": [
        "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ map.zz.y }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ missing + 1 }}", "{{ 1 < 'a' }}", "{% for x in 5 %}{% endfor %}", "{{ 1 / 0 }}", "{{ 5 | length }}", "{{ 1 in 5 }}", "{% set name.x = 1 %}", "{% for a, b in list %}{% endfor %}", "{{ missing | tojson }}", "{{ nil.items() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(c=2) }}", "{{ -name }}", "{{ list[::0] }}",
    ],
}


def main():
    env = environment()
    out = {"note": "Rendered by Jinja with trim_blocks, lstrip_blocks and loopcontrols; error: it refuses to render.", "variables": V, "cases": []}
    for group, templates in CASES.items():
        for source in templates:
            case = {"group": group, "template": source}
            try:
                case["expected"] = env.from_string(source).render(**V)
            except Exception:  # any failure counts
                case["error"] = True
            out["cases"].append(case)
    print(json.dumps(out, indent=1, ensure_ascii=True))


main()
