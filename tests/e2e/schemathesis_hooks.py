"""Keeps what schemathesis asks for within reason: loaded through SCHEMATHESIS_HOOKS.

Short answers, so that there are many; and no deadlines that no server could meet, for which a 504 is the right answer.
"""

import schemathesis

TOKENS_MAX = 8
DEADLINE_MS_MIN = 60_000
DEADLINE = "X-Request-Deadline-Ms"
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def is_short(deadline):
    return isinstance(deadline, int) and 0 < deadline < DEADLINE_MS_MIN


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.operation.path not in GENERATING:
        return
    header = str((case.headers or {}).get(DEADLINE, ""))
    if header.isdecimal() and is_short(int(header)):
        case.headers[DEADLINE] = str(DEADLINE_MS_MIN)
    body = case.body
    if not isinstance(body, dict):
        return
    limits = [body.get(name) for name in LIMITS]
    if not any(limits) or any(isinstance(limit, int) and limit > TOKENS_MAX for limit in limits):
        body = {**body, **dict.fromkeys(LIMITS, TOKENS_MAX)}
    if is_short(body.get("ttft_deadline_ms")):
        body = {**body, "ttft_deadline_ms": DEADLINE_MS_MIN}
    case.body = body
