#include "services/gateway/text/end_tokens.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/files.h"
#include "services/gateway/text/json.h"

namespace quartet::text {
namespace {

constexpr size_t kConfigBytesMax = size_t{64} << 20;

absl::Status FieldError(const std::string& file, std::string_view field, const Value& found,
                        std::string_view expected) {
  std::string shown;
  if (!AppendJson(found, {}, &shown).ok()) shown = "missing";
  if (shown.size() > 200) shown = shown.substr(0, 200) + "...";
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": ", Av(field), " is ", shown, "; ", Av(expected), " is expected"));
}

// A file that may be missing: then an empty object.
absl::StatusOr<Value> ReadOptional(const std::string& path) {
  absl::StatusOr<Value> value = ReadJsonObjectFile(path, kConfigBytesMax);
  if (absl::IsNotFound(value.status())) return Value::MakeObject({});
  return value;
}

class Loader {
 public:
  Loader(const std::string& model_dir, const Tokenizer& tokenizer)
      : config_path_(model_dir + "/config.json"),
        generation_path_(model_dir + "/generation_config.json"),
        tokenizer_path_(model_dir + "/tokenizer_config.json"),
        tokenizer_(tokenizer) {}

  absl::StatusOr<GenerationDefaults> Load() {
    absl::StatusOr<Value> config = ReadJsonObjectFile(config_path_, kConfigBytesMax);
    if (!config.ok()) return config.status();
    absl::StatusOr<Value> generation = ReadOptional(generation_path_);
    if (!generation.ok()) return generation.status();
    absl::StatusOr<Value> tokenizer_config = ReadOptional(tokenizer_path_);
    if (!tokenizer_config.ok()) return tokenizer_config.status();
    const Value text_config = config->Get("text_config");

    if (absl::Status s = VocabSize(*config, text_config); !s.ok()) return s;
    if (absl::Status s = AddIds(generation_path_, "eos_token_id", generation->Get("eos_token_id"));
        !s.ok()) {
      return s;
    }
    if (absl::Status s = AddIds(config_path_, "eos_token_id", config->Get("eos_token_id"));
        !s.ok()) {
      return s;
    }
    if (absl::Status s =
            AddIds(config_path_, "text_config.eos_token_id", text_config.Get("eos_token_id"));
        !s.ok()) {
      return s;
    }
    if (absl::Status s = AddNamed(tokenizer_config->Get("eos_token")); !s.ok()) return s;

    std::vector<int32_t>& ids = out_.end.ids;
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    if (ids.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(generation_path_,
                       ": no end token is known; eos_token_id is expected here or in config.json, "
                       "or eos_token in tokenizer_config.json"));
    }
    if (absl::Status s = Sampling(*generation); !s.ok()) return s;

    Value positions = text_config.Get("max_position_embeddings");
    if (positions.is_absent()) positions = config->Get("max_position_embeddings");
    if (!positions.is_absent()) {
      if (!positions.is_integer() || positions.integer() < 1) {
        return FieldError(config_path_, "max_position_embeddings", positions, "a positive integer");
      }
      out_.max_position_embeddings = positions.integer();
    }
    return std::move(out_);
  }

 private:
  absl::Status VocabSize(const Value& config, const Value& text_config) {
    Value size = text_config.Get("vocab_size");
    std::string_view field = "text_config.vocab_size";
    if (size.is_absent()) {
      size = config.Get("vocab_size");
      field = "vocab_size";
    }
    if (!size.is_integer() || size.integer() < 1 || size.integer() > (int64_t{1} << 24)) {
      return FieldError(config_path_, field, size, "an integer from 1 to 16777216");
    }
    if (size.integer() < tokenizer_.vocab_size()) {
      return FieldError(config_path_, field, size,
                        absl::StrCat("at least the tokenizer's ", tokenizer_.vocab_size()));
    }
    out_.end.vocab_size = static_cast<int32_t>(size.integer());
    out_.end.first_padding_id = tokenizer_.vocab_size();
    return absl::OkStatus();
  }

  absl::Status AddIds(const std::string& file, std::string_view field, const Value& value) {
    if (value.is_absent()) return absl::OkStatus();
    const Value::List ids = value.is_list() ? value.list() : Value::List{value};
    for (const Value& id : ids) {
      if (!id.is_integer() || id.integer() < 0 || id.integer() >= out_.end.vocab_size) {
        return FieldError(
            file, field, value,
            absl::StrCat("an id from 0 to ", out_.end.vocab_size - 1, " or a list of them"));
      }
      out_.end.ids.push_back(static_cast<int32_t>(id.integer()));
    }
    return absl::OkStatus();
  }

  // eos_token is a string, or an object with the string as "content".
  absl::Status AddNamed(const Value& value) {
    const Value name = value.is_object() ? value.Get("content") : value;
    if (name.is_absent()) return absl::OkStatus();
    const std::optional<int32_t> id =
        name.is_string() ? tokenizer_.TokenId(name.string()) : std::nullopt;
    if (!id || *id >= out_.end.vocab_size) {
      return FieldError(tokenizer_path_, "eos_token", value, "a token of tokenizer.json");
    }
    out_.end.ids.push_back(*id);
    return absl::OkStatus();
  }

  absl::Status Number(const Value& config, const char* field, double low, double high,
                      double* out) {
    const Value value = config.Get(field);
    if (value.is_absent()) return absl::OkStatus();
    if (!value.is_number() || !(value.number() >= low) || !(value.number() <= high)) {
      return FieldError(generation_path_, field, value,
                        absl::StrCat("a number from ", low, " to ", high));
    }
    *out = value.number();
    return absl::OkStatus();
  }

  absl::Status Sampling(const Value& config) {
    SamplingDefaults& sampling = out_.sampling;
    const Value do_sample = config.Get("do_sample");
    if (!do_sample.is_absent() && !do_sample.is_bool()) {
      return FieldError(generation_path_, "do_sample", do_sample, "true or false");
    }
    double top_k = 0.0;
    for (const absl::Status& status :
         {Number(config, "temperature", 0.0, 100.0, &sampling.temperature),
          Number(config, "top_p", 0.0, 1.0, &sampling.top_p),
          Number(config, "top_k", -1.0, 16777216.0, &top_k),
          Number(config, "min_p", 0.0, 1.0, &sampling.min_p),
          Number(config, "repetition_penalty", 0.01, 100.0, &sampling.repetition_penalty)}) {
      if (!status.ok()) return status;
    }
    sampling.top_k = std::max(0, static_cast<int32_t>(top_k));
    sampling.greedy = do_sample.is_bool() && !do_sample.boolean();
    if (sampling.greedy) sampling.temperature = 0.0;
    return absl::OkStatus();
  }

  const std::string config_path_;
  const std::string generation_path_;
  const std::string tokenizer_path_;
  const Tokenizer& tokenizer_;
  GenerationDefaults out_;
};

}  // namespace

bool EndTokens::Contains(int32_t id) const {
  return std::binary_search(ids.begin(), ids.end(), id);
}

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_dir,
                                                          const Tokenizer& tokenizer) {
  return Loader(model_dir, tokenizer).Load();
}

}  // namespace quartet::text
