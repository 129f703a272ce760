#include "services/gateway/openai/request.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "services/gateway/access/fair_key.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

const RequestLimits kLimits{.served_model_name = "m", .vocab_size = 2048};

text::Value Json(const std::string& json) {
  auto value = text::ParseJson(json);
  EXPECT_TRUE(value.ok()) << json << ": " << value.status();
  return value.ok() ? *value : text::Value();
}

// A body with what every request needs and `fields` besides.
std::variant<ChatFields, ApiError> Chat(const std::string& fields) {
  return ParseChatFields(Json(R"({"messages":[{"role":"user","content":"hi"}])" +
                              (fields.empty() ? "" : "," + fields) + "}"),
                         kLimits);
}
std::variant<CompletionFields, ApiError> Completion(const std::string& fields,
                                                    const std::string& prompt = "\"hi\"") {
  return ParseCompletionFields(
      Json("{\"prompt\":" + prompt + (fields.empty() ? "" : "," + fields) + "}"), kLimits);
}

struct Refused {
  std::string fields;
  std::string param;
  std::string message_part;
  int status = 400;
};

template <typename Parse>
void ExpectRefused(const Refused& expected, Parse parse) {
  auto result = parse(expected.fields);
  const auto* error = std::get_if<ApiError>(&result);
  ASSERT_NE(error, nullptr) << expected.fields << " was accepted";
  EXPECT_EQ(error->status, expected.status) << expected.fields;
  EXPECT_EQ(error->param, expected.param) << expected.fields;
  EXPECT_NE(error->message.find(expected.message_part), std::string::npos)
      << expected.fields << ": " << error->message;
}

TEST(RequestFields, WrongTypesAndRangesNameTheField) {
  const Refused table[] = {
      {R"("model":"other")", "model", "does not exist", 404},
      {R"("model":7)", "model", "must be a string"},
      {R"("stream":1)", "stream", "must be true or false"},
      {R"("stream":"true")", "stream", "must be true or false"},
      {R"("stream_options":{"include_usage":true})", "stream_options", "only with"},
      {R"("stream":true,"stream_options":[])", "stream_options", "must be an object"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
       "must be true or false"},
      {R"("stream":true,"stream_options":{"continuous_usage_stats":true})",
       "stream_options.continuous_usage_stats", "needs"},
      {R"("max_tokens":0)", "max_tokens", "from 1"},
      {R"("max_tokens":-1)", "max_tokens", "from 1"},
      {R"("max_tokens":1.5)", "max_tokens", "integer"},
      {R"("max_tokens":"5")", "max_tokens", "must be an integer, not string"},
      {R"("max_tokens":99999999999999999999)", "max_tokens", "integer"},
      {R"("max_completion_tokens":0)", "max_completion_tokens", "from 1"},
      {R"("temperature":-0.1)", "temperature", "from 0 to 2"},
      {R"("temperature":2.1)", "temperature", "from 0 to 2"},
      {R"("temperature":"0.7")", "temperature", "must be a number, not string"},
      {R"("temperature":1e400)", "temperature", "from 0 to 2"},
      {R"("temperature":true)", "temperature", "must be a number"},
      {R"("top_p":0)", "top_p", "above 0"},
      {R"("top_p":1.01)", "top_p", "from 0 to 1"},
      {R"("top_k":-2)", "top_k", "from -1"},
      {R"("top_k":0.5)", "top_k", "integer"},
      {R"("min_p":-0.1)", "min_p", "from 0 to 1"},
      {R"("min_p":1.1)", "min_p", "from 0 to 1"},
      {R"("seed":"x")", "seed", "must be an integer"},
      {R"("seed":1e30)", "seed", "integer"},
      {R"("stop":"")", "stop", "must not be empty"},
      {R"("stop":["a",""])", "stop[1]", "must not be empty"},
      {R"("stop":["a",3])", "stop[1]", "must be a string"},
      {R"("stop":{})", "stop", "string or a list"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
       "stop", "at most 16"},
      {absl::StrCat("\"stop\":\"", std::string(1025, 'x'), "\""), "stop", "at most 1024 bytes"},
      {R"("stop_token_ids":[2048])", "stop_token_ids[0]", "from 0 to 2047"},
      {R"("stop_token_ids":[1,-1])", "stop_token_ids[1]", "from 0 to 2047"},
      {R"("stop_token_ids":["a"])", "stop_token_ids[0]", "token id"},
      {R"("stop_token_ids":5)", "stop_token_ids", "list of token ids"},
      {R"("ignore_eos":"no")", "ignore_eos", "true or false"},
      {R"("skip_special_tokens":0)", "skip_special_tokens", "true or false"},
      {R"("include_stop_str_in_output":0)", "include_stop_str_in_output", "true or false"},
      {R"("return_token_ids":0)", "return_token_ids", "true or false"},
      {R"("request_id":5)", "request_id", "must be a string"},
  };
  for (const Refused& refused : table) {
    ExpectRefused(refused, Chat);
    ExpectRefused(refused, [](const std::string& fields) { return Completion(fields); });
  }
}

TEST(RequestFields, WhatIsNotDoneIsRefusedByNameAndNeverIgnored) {
  const Refused both[] = {
      {R"("n":0)", "n", "from 1 to 128"},
      {R"("n":129)", "n", "from 1 to 128"},
      {R"("best_of":2)", "best_of", "equal to n, 1"},
      {R"("n":3,"best_of":4)", "best_of", "equal to n, 3"},
      {R"("presence_penalty":3)", "presence_penalty", "from -2 to 2"},
      {R"("frequency_penalty":-2.5)", "frequency_penalty", "from -2 to 2"},
      {R"("repetition_penalty":0)", "repetition_penalty", "above 0"},
      {R"("repeat_penalty":-1)", "repeat_penalty", "from 0"},
      {R"("min_tokens":-1)", "min_tokens", "from 0"},
      {R"("min_tokens":6,"max_tokens":5)", "min_tokens", "at most max_tokens, 5"},
      {R"("logit_bias":{"2048":1})", "logit_bias", "not a token id from 0 to 2047"},
      {R"("logit_bias":{"-1":1})", "logit_bias", "not a token id"},
      {R"("logit_bias":{"5":101})", "logit_bias", "from -100 to 100"},
      {R"("logit_bias":[])", "logit_bias", "must be an object"},
      {R"("response_format":{"type":"xml"})", "response_format", "\"xml\" is not supported"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema", "missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{}})",
       "response_format.json_schema.schema", "missing"},
      {R"("response_format":{})", "response_format", "type"},
      {R"("structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs.choice",
       "already, from structured_outputs.regex"},
      {R"("structured_outputs":{"grammar":"root ::= x"})", "structured_outputs.grammar",
       "not supported"},
      {R"("structured_outputs":{"structural_tag":"x"})", "structured_outputs.structural_tag",
       "not supported"},
      {R"("guided_json":{"type":"object"},"guided_regex":"a")", "guided_regex", "already"},
      {R"("guided_json":"{")", "guided_json", "not JSON"},
      {R"("guided_json":[])", "guided_json", "must be a JSON schema"},
      {R"("guided_regex":5)", "guided_regex", "must be a string"},
      {R"("guided_choice":["a",1])", "guided_choice", "list of strings"},
      {R"("guided_grammar":"root ::= x")", "guided_grammar", "not supported"},
      {R"("grammar":"root ::= x")", "grammar", "not supported"},
      {R"("ebnf":"root ::= x")", "ebnf", "not supported"},
      {R"("structural_tag":{"a":1})", "structural_tag", "not supported"},
      {R"("regex":"a+","min_tokens":3)", "min_tokens", "cannot be combined with regex"},
      {R"("regex":"a+","ignore_eos":true)", "ignore_eos", "cannot be combined with regex"},
      {R"("prompt_logprobs":21)", "prompt_logprobs", "from 0 to 20"},
      {R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs", "stream"},
      {R"("truncate_prompt_tokens":10)", "truncate_prompt_tokens", "not supported"},
      {R"("priority":0.5)", "priority", "integer"},
      {R"("service_tier":"gold")", "service_tier", "must be"},
      {R"("service_tier":1)", "service_tier", "must be a string"},
      {R"("user":7)", "user", "must be a string"},
      {R"("ttft_deadline_ms":0)", "ttft_deadline_ms", "from 1"},
  };
  for (const Refused& refused : both) {
    ExpectRefused(refused, Chat);
    ExpectRefused(refused, [](const std::string& fields) { return Completion(fields); });
  }
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  const Refused chat[] = {
      {R"("logprobs":1)", "logprobs", "true or false"},
      {R"("top_logprobs":3)", "top_logprobs", "needs"},
      {R"("top_logprobs":21)", "top_logprobs", "from 0 to 20"},
      {R"("tool_choice":"required")", "tool_choice", "needs tools"},
      {tool + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})", "tool_choice",
       "'g' is not the name of one of the tools"},
      {tool + R"(,"tool_choice":{"type":"function"})", "tool_choice", "must name a function"},
      {tool + R"(,"tool_choice":{"type":"function","function":{"name":"f"}},"regex":"a")",
       "tool_choice", "cannot be combined with regex"},
      {tool + R"(,"tool_choice":{"type":"allowed_tools"})", "tool_choice.allowed_tools",
       "must be an object"},
      {tool + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto"}})",
       "tool_choice.allowed_tools.tools", "at least one"},
      {tool + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",)" +
           R"("tools":[{"type":"function","function":{"name":"g"}}]}})",
       "tool_choice.allowed_tools.tools[0]", "'g' is not the name"},
      {tool + R"(,"tool_choice":"required","ignore_eos":true)", "ignore_eos",
       "cannot be combined with this tool_choice"},
      {tool + R"(,"tool_choice":"sometimes")", "tool_choice", "must be"},
      {tool + R"(,"parallel_tool_calls":1)", "parallel_tool_calls", "true or false"},
      {R"("tool_choice":"auto")", "tool_choice", "needs tools"},
      {R"("tools":{})", "tools", "must be a list"},
      {R"("functions":[])", "functions", "use tools"},
      {R"("function_call":"auto")", "function_call", "use tool_choice"},
      {R"("echo":true)", "echo", "only false"},
      {R"("separate_reasoning":false)", "separate_reasoning", "only true"},
      {R"("reasoning_effort":3)", "reasoning_effort", "must be a string"},
      {R"("reasoning":"high")", "reasoning", "must be an object"},
      {R"("reasoning":{"max_tokens":-5})", "reasoning.max_tokens", "from 0"},
      {R"("reasoning":{"enabled":"no"})", "reasoning.enabled", "must be true or false"},
      {R"("thinking":{"type":1})", "thinking.type", "must be a string"},
      {R"("thinking_token_budget":"5")", "thinking_token_budget", "must be an integer"},
      {R"("thinking":{"type":"enabled","budget_tokens":-1})", "thinking.budget_tokens", "from 0"},
      {R"("chat_template":"{{x}}")", "chat_template", "not allowed"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs", "must be an object"},
      {R"("modalities":["text","audio"])", "modalities", "only"},
      {R"("web_search_options":{"a":1})", "web_search_options", "not supported"},
  };
  for (const Refused& refused : chat) ExpectRefused(refused, Chat);
  const Refused completion[] = {
      {R"("logprobs":21)", "logprobs", "from 0 to 20"},
      {R"("logprobs":2,"echo":true,"stream":true)", "logprobs", "stream"},
      {R"("logprobs":true)", "logprobs", "must be an integer"},
      {R"("suffix":"x")", "suffix", "not supported"},
      {R"("echo":1)", "echo", "true or false"},
  };
  for (const Refused& refused : completion) {
    ExpectRefused(refused, [](const std::string& fields) { return Completion(fields); });
  }
}

TEST(RequestFields, FormsOfTheContentComeUnderManyNames) {
  const auto content = [](const std::string& fields) {
    const auto chat = Chat(fields);
    if (const auto* error = std::get_if<ApiError>(&chat)) {
      ADD_FAILURE() << fields << ": " << error->message;
      return text::ContentForm();
    }
    return std::get<ChatFields>(chat).form.content.value_or(text::ContentForm());
  };
  EXPECT_TRUE(content(R"("response_format":{"type":"json_object"})").json_object);
  EXPECT_TRUE(content(R"("structured_outputs":{"json_object":true})").json_object);
  for (const char* fields :
       {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"null"}}})",
        R"("structured_outputs":{"json":{"type":"null"}})", R"("guided_json":{"type":"null"})",
        R"("guided_json":"{\"type\":\"null\"}")", R"("json_schema":{"type":"null"})"}) {
    const text::ContentForm form = content(fields);
    ASSERT_TRUE(form.json_schema.has_value()) << fields;
    EXPECT_EQ(form.json_schema->Get("type").string(), "null");
  }
  for (const char* fields :
       {R"("structured_outputs":{"regex":"a"})", R"("guided_regex":"a")", R"("regex":"a")"}) {
    EXPECT_EQ(content(fields).regex, "a") << fields;
  }
  for (const char* fields :
       {R"("structured_outputs":{"choice":["a","b"]})", R"("guided_choice":["a","b"])"}) {
    EXPECT_EQ(content(fields).choices, (std::vector<std::string>{"a", "b"})) << fields;
  }
}

TEST(RequestFields, AToolChoiceSaysWhichCallsMayOrMustCome) {
  const auto form = [](const std::string& fields) {
    return std::get<ChatFields>(Chat(R"("tools":[{"type":"function","function":{"name":"f"}},)"
                                     R"({"type":"function","function":{"name":"g"}}],)" +
                                     fields))
        .form;
  };
  EXPECT_FALSE(form(R"("tool_choice":"auto")").constrained());
  EXPECT_FALSE(form(R"("tool_choice":"none")").constrained());
  const auto required = form(R"("tool_choice":"required","parallel_tool_calls":false)").tools;
  ASSERT_TRUE(required.has_value());
  EXPECT_TRUE(required->required);
  EXPECT_FALSE(required->parallel);
  EXPECT_TRUE(required->names.empty());
  const auto named = form(R"("tool_choice":{"type":"function","function":{"name":"g"}})").tools;
  ASSERT_TRUE(named.has_value());
  EXPECT_TRUE(named->required);
  EXPECT_EQ(named->names, std::vector<std::string>{"g"});
  const auto allowed =
      form(R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",)"
           R"("tools":[{"type":"function","function":{"name":"f"}}]}})")
          .tools;
  ASSERT_TRUE(allowed.has_value());
  EXPECT_FALSE(allowed->required);
  EXPECT_EQ(allowed->names, std::vector<std::string>{"f"});

  const AnswerFormFields either = form(R"("guided_regex":"a")");
  EXPECT_TRUE(either.content.has_value());
  ASSERT_TRUE(either.tools.has_value()) << "a call or the content";
  EXPECT_FALSE(either.tools->required);
  const AnswerFormFields none = form(R"("guided_regex":"a","tool_choice":"none")");
  EXPECT_TRUE(none.content.has_value());
  EXPECT_FALSE(none.tools.has_value());
}

TEST(RequestFields, WhatShapesTheDrawIsTaken) {
  const auto fields = std::get<ChatFields>(
      Chat(R"("n":3,"best_of":3,"presence_penalty":0.5,"frequency_penalty":-2,"min_tokens":4,)"
           R"("repetition_penalty":1.25,"logit_bias":{"5":1.5,"2047":-100})"));
  EXPECT_EQ(fields.n, 3u);
  const Sampling sampling = ResolveSampling(fields, {}, 1);
  EXPECT_EQ(sampling.presence_penalty, 0.5f);
  EXPECT_EQ(sampling.frequency_penalty, -2.0f);
  EXPECT_EQ(sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(sampling.min_tokens, 4u);
  EXPECT_EQ(sampling.logit_bias,
            (std::vector<std::pair<int32_t, float>>{{5, 1.5f}, {2047, -100.0f}}));
  const text::SamplingDefaults defaults{.repetition_penalty = 1.1};
  EXPECT_EQ(ResolveSampling({}, defaults, 1).repetition_penalty, 1.1f);
  EXPECT_EQ(ResolveSampling(fields, defaults, 1).repetition_penalty, 1.25f);
}

TEST(RequestFields, AThousandAndTwentyFourBiasesAreTheLimit) {
  const auto many = [](int count) {
    std::string fields = "\"logit_bias\":{";
    for (int id = 0; id < count; ++id) absl::StrAppend(&fields, id ? "," : "", "\"", id, "\":1");
    return fields + "}";
  };
  EXPECT_EQ(std::get<ChatFields>(Chat(many(1024))).logit_bias.size(), 1024u);
  ExpectRefused({many(1025).c_str(), "logit_bias", "at most 1024"}, Chat);
}

TEST(RequestFields, TheThinkingBudgetHasManyNames) {
  for (const char* fields :
       {R"("thinking_token_budget":7)", R"("reasoning_budget_tokens":7)", R"("thinking_budget":7)",
        R"("reasoning":{"max_tokens":7})", R"("thinking":{"type":"enabled","budget_tokens":7})"}) {
    EXPECT_EQ(std::get<ChatFields>(Chat(fields)).thinking_token_budget, 7u) << fields;
  }
  EXPECT_EQ(std::get<ChatFields>(Chat(R"("thinking_token_budget":0)")).thinking_token_budget, 0u);
  for (const char* fields : {"", R"("thinking":{"type":"enabled"})", R"("thinking_budget":null)",
                             R"("thinking":{"type":"disabled","budget_tokens":7})"}) {
    EXPECT_EQ(std::get<ChatFields>(Chat(fields)).thinking_token_budget, std::nullopt) << fields;
  }
}

TEST(RequestFields, LogprobsOfChatsAndCompletions) {
  const auto chat = std::get<ChatFields>(Chat(R"("logprobs":true,"top_logprobs":20)")).logprobs;
  EXPECT_TRUE(chat.output);
  EXPECT_EQ(chat.output_top, 20u);
  EXPECT_FALSE(chat.prompt);
  const auto zero = std::get<CompletionFields>(Completion(R"("logprobs":0)")).logprobs;
  EXPECT_TRUE(zero.output);
  EXPECT_EQ(zero.output_top, 0u);
  EXPECT_FALSE(zero.prompt);
  const auto echo = std::get<CompletionFields>(Completion(R"("logprobs":3,"echo":true)")).logprobs;
  EXPECT_TRUE(echo.prompt);
  EXPECT_EQ(echo.prompt_top, 3u);
  const auto prompt = std::get<CompletionFields>(Completion(R"("prompt_logprobs":2)"));
  EXPECT_TRUE(prompt.logprobs.prompt);
  EXPECT_TRUE(prompt.prompt_logprobs);
  EXPECT_FALSE(prompt.logprobs.output);
}

TEST(RequestFields, ChoicesOfAllPromptsTogetherAreLimited) {
  EXPECT_TRUE(std::holds_alternative<CompletionFields>(Completion(R"("n":64)", R"(["a","b"])")));
  const auto many = Completion(R"("n":65)", R"(["a","b"])");
  ASSERT_TRUE(std::holds_alternative<ApiError>(many));
  EXPECT_EQ(std::get<ApiError>(many).param, "n");
}

TEST(RequestFields, FlexAndPrioritiesAboveZeroAreTheBatchClass) {
  const auto batch = [](const std::string& fields) {
    return std::get<ChatFields>(Chat(fields)).batch;
  };
  EXPECT_TRUE(batch(R"("service_tier":"flex")"));
  EXPECT_TRUE(batch(R"("priority":1)"));
  EXPECT_TRUE(batch(R"("service_tier":"priority","priority":7)"));
  EXPECT_FALSE(batch(""));
  EXPECT_FALSE(batch(R"("service_tier":"default")"));
  EXPECT_FALSE(batch(R"("service_tier":"priority","priority":-3)"));
}

TEST(SaltOfKey, KeepsTokensApart) {
  EXPECT_EQ(SaltOfKey(""), "");
  EXPECT_EQ(SaltOfKey("Basic abc"), "");
  EXPECT_NE(SaltOfKey("Bearer a"), SaltOfKey("Bearer b"));
  EXPECT_EQ(SaltOfKey("bearer  a "), SaltOfKey("Bearer a"));
}

TEST(FairKey, IsOfTheTokenElseOfTheUserElseShared) {
  EXPECT_EQ(FairKey("", ""), 0u);
  EXPECT_EQ(FairKey("Bearer ", ""), 0u);
  EXPECT_EQ(FairKey("Basic abc", ""), 0u);
  EXPECT_NE(FairKey("Bearer a", ""), FairKey("Bearer b", ""));
  EXPECT_EQ(FairKey("bearer  a ", ""), FairKey("Bearer a", ""));
  EXPECT_EQ(FairKey("Bearer a", "x"), FairKey("Bearer a", "y"));
  EXPECT_NE(FairKey("", "x"), FairKey("", "y"));
  EXPECT_NE(FairKey("", "a"), FairKey("Bearer a", ""));
}

TEST(RequestFields, ValuesThatAskForNothingSpecialAreAccepted) {
  for (
      const char* fields :
      {"",
       R"("n":1,"best_of":1,"presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1,"min_tokens":0)",
       R"("logit_bias":{},"response_format":{"type":"text"},"priority":0,"prompt_logprobs":false)",
       R"("model":"m","stream":null,"max_tokens":null,"stop":null,"seed":null,"temperature":null)",
       R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})",
       R"("temperature":0,"top_p":1,"top_k":-1,"min_p":0,"seed":-5,"stop":["a","b"],"stop_token_ids":[0,2047])",
       R"("max_tokens":16.0)",
       R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","verbosity":"low")",
       R"("typical_p":0.5,"mirostat":2,"dry_multiplier":0.8,"unheard_of":[1,2])"}) {
    auto chat = Chat(fields);
    EXPECT_TRUE(std::holds_alternative<ChatFields>(chat))
        << fields << ": " << std::get<ApiError>(chat).message;
    auto completion = Completion(fields);
    EXPECT_TRUE(std::holds_alternative<CompletionFields>(completion)) << fields;
  }
  for (
      const char* fields :
      {R"("logprobs":false,"top_logprobs":0)", R"("tools":[],"tool_choice":"none")",
       R"("parallel_tool_calls":false)", R"("modalities":["text"],"include_reasoning":false)",
       R"("modalities":[],"reasoning":{"enabled":true,"effort":"low"},"thinking":{"type":"enabled"})"}) {
    EXPECT_TRUE(std::holds_alternative<ChatFields>(Chat(fields))) << fields;
  }
}

TEST(RequestFields, WhatIsIgnoredIsKnownByName) {
  const IgnoredFields of_chat =
      std::get<ChatFields>(
          Chat(
              R"("typical_p":0.5,"mirostat":2,"xtc_probability":0.1,"dry_multiplier":0.8,"unheard_of":[1],)"
              R"("metadata":{},"store":true,"tools":[],"reasoning":{},"temperature":1,"stream":false)"))
          .ignored;
  EXPECT_EQ(of_chat.samplers, (std::vector<std::string>{"typical_p", "mirostat", "xtc_probability",
                                                        "dry_multiplier"}));
  EXPECT_EQ(of_chat.unknown, (std::vector<std::string>{"unheard_of"}));
  const IgnoredFields of_completion =
      std::get<CompletionFields>(Completion(R"("messages":[],"tfs":1,"echo":true)")).ignored;
  EXPECT_EQ(of_completion.samplers, (std::vector<std::string>{"tfs"}));
  EXPECT_EQ(of_completion.unknown, (std::vector<std::string>{"messages"}));
}

TEST(RequestFields, AServerMayTakeAnyModelName) {
  RequestLimits any = kLimits;
  any.any_model = true;
  const auto body = Json(R"({"model":"gpt-9","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_TRUE(std::holds_alternative<ChatFields>(ParseChatFields(body, any)));
  EXPECT_TRUE(std::holds_alternative<ApiError>(ParseChatFields(body, kLimits)));
}

TEST(RequestFields, MessagesMustBeAListThatHoldsSomething) {
  for (const char* body :
       {"{}", R"({"messages":null})", R"({"messages":[]})", R"({"messages":"hi"})"}) {
    auto result = ParseChatFields(Json(body), kLimits);
    ASSERT_TRUE(std::holds_alternative<ApiError>(result)) << body;
    EXPECT_EQ(std::get<ApiError>(result).param, "messages") << body;
  }
  EXPECT_TRUE(std::holds_alternative<ApiError>(ParseChatFields(Json("[]"), kLimits)));
}

TEST(RequestFields, MaxCompletionTokensWins) {
  EXPECT_EQ(std::get<ChatFields>(Chat(R"("max_tokens":5,"max_completion_tokens":7)")).max_tokens,
            7);
}

TEST(RequestFields, OfKeysThatRepeatTheLastWins) {
  EXPECT_EQ(std::get<ChatFields>(Chat(R"("max_tokens":5,"max_tokens":6)")).max_tokens, 6);
}

TEST(CompletionPrompts, ComeInFourForms) {
  auto prompts = [](const std::string& prompt) {
    return std::get<CompletionFields>(Completion("", prompt)).prompts;
  };
  EXPECT_EQ(prompts(R"("a")"), (std::vector<CompletionPrompt>{std::string("a")}));
  EXPECT_EQ(prompts(R"(["a","b"])"),
            (std::vector<CompletionPrompt>{std::string("a"), std::string("b")}));
  EXPECT_EQ(prompts("[1,2]"), (std::vector<CompletionPrompt>{std::vector<int32_t>{1, 2}}));
  EXPECT_EQ(prompts("[[1],[2,3]]"),
            (std::vector<CompletionPrompt>{std::vector<int32_t>{1}, std::vector<int32_t>{2, 3}}));
}

TEST(CompletionPrompts, OtherFormsNameThePlace) {
  const std::pair<const char*, const char*> table[] = {
      {"null", "prompt"},         {"5", "prompt"},
      {"{}", "prompt"},           {"[]", "prompt"},
      {"[1,\"a\"]", "prompt[1]"}, {"[\"a\",1]", "prompt[1]"},
      {"[[1],2]", "prompt[1]"},   {"[[1],[]]", "prompt[1]"},
      {"[2048]", "prompt[0]"},    {"[[1],[5,-1]]", "prompt[1][1]"},
      {"[true]", "prompt[0]"},    {"[[1.5]]", "prompt[0][0]"},
  };
  for (const auto& [prompt, param] : table) {
    auto result = Completion("", prompt);
    ASSERT_TRUE(std::holds_alternative<ApiError>(result)) << prompt;
    EXPECT_EQ(std::get<ApiError>(result).param, param) << prompt;
  }
}

TEST(CompletionPrompts, NoTokensAreAllowedOnlyWithEcho) {
  EXPECT_EQ(std::get<CompletionFields>(Completion(R"("echo":true,"max_tokens":0)")).max_tokens, 0);
  EXPECT_TRUE(std::holds_alternative<ApiError>(Completion(R"("max_tokens":0)")));
}

TEST(SamplingOfARequest, AModelThatSaysDoSampleFalseIsGreedyUnlessAskedOtherwise) {
  const text::SamplingDefaults greedy{.greedy = true, .temperature = 0, .top_p = 0.95};
  EXPECT_EQ(ResolveSampling({}, greedy, 9).temperature, 0);
  EXPECT_EQ(ResolveSampling({}, greedy, 9).seed, 9u);
  EXPECT_FALSE(ResolveSampling({}, greedy, 9).seeded);
  CommonFields with_seed;
  with_seed.seed = -1;
  EXPECT_EQ(ResolveSampling(with_seed, greedy, 9).temperature, 0)
      << "a seed alone does not ask for sampling";
  EXPECT_EQ(ResolveSampling(with_seed, greedy, 9).seed, ~uint64_t{0});
  EXPECT_TRUE(ResolveSampling(with_seed, greedy, 9).seeded);
  CommonFields with_top_p;
  with_top_p.top_p = 0.5;
  EXPECT_EQ(ResolveSampling(with_top_p, greedy, 9).temperature, 1);
  EXPECT_EQ(ResolveSampling(with_top_p, greedy, 9).top_p, 0.5f);
  CommonFields warm;
  warm.temperature = 0.7;
  EXPECT_EQ(ResolveSampling(warm, greedy, 9).temperature, 0.7f);
  EXPECT_EQ(ResolveSampling(warm, greedy, 9).top_p, 0.95f) << "the rest comes from the model";
}

TEST(SamplingOfARequest, DefaultsComeFromTheModelAndTinyTemperaturesAreRaised) {
  const text::SamplingDefaults defaults{
      .temperature = 0.8, .top_p = 0.9, .top_k = 40, .min_p = 0.05};
  const Sampling sampling = ResolveSampling({}, defaults, 1);
  EXPECT_EQ(sampling.temperature, 0.8f);
  EXPECT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_EQ(sampling.min_p, 0.05f);
  CommonFields fields;
  fields.temperature = 1e-5;
  fields.top_k = -1;
  EXPECT_EQ(ResolveSampling(fields, defaults, 1).temperature, 0.01f);
  EXPECT_EQ(ResolveSampling(fields, defaults, 1).top_k, 0);
  fields.temperature = 0;
  EXPECT_EQ(ResolveSampling(fields, defaults, 1).temperature, 0);
}

}  // namespace
}  // namespace quartet::gateway
