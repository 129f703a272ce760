"""Keeps what schemathesis asks for within reason: loaded through SCHEMATHESIS_HOOKS.

Short answers, so that there are many; and no deadlines that no server could meet, for which a 504 is the right answer.
"""

import schemathesis

TOKENS_MAX = 8
DEADLINE_MS_MIN = 60_000
DEADLINE = "X-Request-Deadline-Ms"
# What limits an answer, by the path that generates it.
LIMITS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}


def is_short(deadline):
    return isinstance(deadline, int) and 0 < deadline < DEADLINE_MS_MIN


def is_long(limit):
    # 9e5 is an integer in JSON Schema and here.
    return isinstance(limit, (int, float)) and limit > TOKENS_MAX


@schemathesis.hook
def before_call(context, case, kwargs):
    names = LIMITS.get(case.operation.path)
    if names is None:
        return
    header = str((case.headers or {}).get(DEADLINE, ""))
    if header.isdecimal() and is_short(int(header)):
        case.headers[DEADLINE] = str(DEADLINE_MS_MIN)
    body = case.body
    if not isinstance(body, dict):
        return
    limits = [body.get(name) for name in names]
    if all(limit is None for limit in limits) or any(map(is_long, limits)):
        body = {**body, **dict.fromkeys(names, TOKENS_MAX)}
    if is_short(body.get("ttft_deadline_ms")):
        body = {**body, "ttft_deadline_ms": DEADLINE_MS_MIN}
    case.body = body
