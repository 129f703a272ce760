#include "services/gateway/routing/generation.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace quartet::gateway {
namespace {

// The observer is called under the lock, which is what puts the choices' events in a row. Observers
// only hand on to buffers that have locks of their own and never call back into the generation from
// there.
class Running final : public Generation, public std::enable_shared_from_this<Running> {
 public:
  Running(std::shared_ptr<const text::ModelText> model, GenerationPlan plan,
          std::shared_ptr<GenerationObserver> observer)
      : model_(std::move(model)), plan_(std::move(plan)), observer_(std::move(observer)) {}

  void Start(EngineClient* engine) {
    std::lock_guard lock(mutex_);
    unfinished_ = plan_.choices.size();
    choices_.reserve(plan_.choices.size());
    for (const ChoicePlan& choice : plan_.choices) {
      OutputOptions options = plan_.output;
      options.text.opens_think = choice.opens_think;
      choices_.push_back(std::make_unique<Choice>(model_->tokenizer.get(), std::move(options)));
      choices_.back()->usage.prompt_tokens = static_cast<uint32_t>(choice.prompt_ids.size());
      if (plan_.logprobs.prompt) choices_.back()->unscored_prompt = choice.prompt_ids;
      choices_.back()->only_prompt = choice.max_tokens == 0;
    }
    const text::EndTokens& end = model_->defaults.end;
    for (uint32_t i = 0; i < plan_.choices.size(); ++i) {
      ChoicePlan& choice = plan_.choices[i];
      if (choice.max_tokens == 0 && !plan_.logprobs.prompt) {
        Admitted(i, 0);
        FinishChoice(i, {.kind = FinishKind::kLength});
        continue;
      }
      SequenceRequest request;
      request.request_id = plan_.request_id;
      request.prompt_ids = std::move(choice.prompt_ids);
      request.sampling = plan_.sampling;
      request.system_prefix_tokens = choice.system_tokens;
      request.choice = choice.choice;
      request.max_tokens = std::max(1u, choice.max_tokens);
      request.end_ids = end.ids;
      request.stop_ids = plan_.stop_ids;
      request.first_padding_id = end.first_padding_id < end.vocab_size ? end.first_padding_id : 0;
      request.ignore_eos = plan_.ignore_eos;
      request.logprobs = plan_.logprobs;
      request.thinking = plan_.thinking;
      if (request.thinking) request.thinking->open = choice.opens_think;
      request.grammar = plan_.grammar;
      request.cache_salt = plan_.cache_salt;
      request.cache_read_only = plan_.cache_read_only;
      request.scheduling = plan_.scheduling;
      choices_[i]->sequence =
          engine->Submit(request, std::make_shared<Line>(shared_from_this(), i));
    }
  }

  void Cancel() override {
    std::shared_ptr<GenerationObserver> observer;  // let go of without the lock
    std::lock_guard lock(mutex_);
    observer = std::move(observer_);
    observer_ = nullptr;
    CancelSequences();
  }

  void Abort(const absl::Status& status) override {
    std::lock_guard lock(mutex_);
    Fail(status);
  }

  void SetPaused(bool paused) override {
    std::lock_guard lock(mutex_);
    PauseSequences(paused);
  }

 private:
  struct Choice {
    Choice(const text::Tokenizer* tokenizer, OutputOptions options)
        : pipeline(tokenizer, std::move(options)) {}
    OutputPipeline pipeline;
    std::shared_ptr<Sequence> sequence;
    ChoiceUsage usage;
    std::vector<int32_t> unscored_prompt;  // what has no log-probability yet
    bool prompt_begun = false;
    bool only_prompt = false;
    bool admitted = false;
    bool finished = false;
  };

  // One choice's ear at the engine.
  class Line final : public SequenceObserver {
   public:
    Line(std::shared_ptr<Running> owner, uint32_t choice)
        : owner_(std::move(owner)), choice_(choice) {}
    void OnAdmitted(uint32_t cached_tokens) override {
      std::lock_guard lock(owner_->mutex_);
      owner_->Admitted(choice_, cached_tokens);
    }
    void OnTokens(SequenceTokens tokens) override { owner_->Tokens(choice_, std::move(tokens)); }
    void OnEnd(const SequenceEnd& end) override { owner_->End(choice_, end); }

   private:
    const std::shared_ptr<Running> owner_;
    const uint32_t choice_;
  };

  // With mutex_ held, as everything below that does not take it.
  void Admitted(uint32_t index, uint32_t cached_tokens) {
    Choice& choice = *choices_[index];
    if (!observer_ || choice.admitted) return;
    choice.admitted = true;
    any_admitted_ = true;
    choice.usage.cached_tokens = cached_tokens;
    observer_->OnAdmitted(index, choice.usage);
  }

  void Tokens(uint32_t index, SequenceTokens tokens) {
    std::lock_guard lock(mutex_);
    Choice& choice = *choices_[index];
    if (!observer_ || choice.finished) return;
    Admitted(index, choice.usage.cached_tokens);
    ChoiceUpdate update{.choice = index,
                        .scored_prompt = ScorePrompt(choice, tokens.prompt_logprobs)};
    OutputPipeline::Output output;
    if (!choice.only_prompt) choice.pipeline.Append(tokens.ids, &output);
    // Of the ids the first ones count.
    tokens.logprobs.resize(std::min(tokens.logprobs.size(), output.ids.size()));
    for (size_t i = 0; i < tokens.logprobs.size(); ++i) {
      update.scored.push_back(Scored(output.ids[i], tokens.logprobs[i]));
      ScoredToken& scored = update.scored.back();
      scored.shown = choice.pipeline.IsShown(output.ids[i]);
      scored.content = scored.shown && output.in_content[i];
    }
    Deliver(std::move(update), std::move(output));
    if (choice.pipeline.stopped()) {
      // What the engine says about the end is not waited for: the count is known here.
      choice.sequence->Truncate(choice.pipeline.completion_tokens());
      FinishChoice(index, {});
    }
  }

  void End(uint32_t index, const SequenceEnd& end) {
    std::lock_guard lock(mutex_);
    Choice& choice = *choices_[index];
    if (!observer_ || choice.finished) return;
    if (!end.status.ok()) {
      Fail(end.status);
      return;
    }
    Admitted(index, end.cached_tokens);
    choice.usage.cached_tokens = end.cached_tokens;
    OutputPipeline::Output output;
    const bool length = end.reason == SequenceEnd::Reason::kLength;
    choice.pipeline.Finish(length ? text::OutputEnd::kLength : text::OutputEnd::kStop, &output);
    Deliver({.choice = index}, std::move(output));
    ChoiceFinish finish;
    if (length || choice.only_prompt) {
      finish = {.kind = FinishKind::kLength};
    } else if (end.reason == SequenceEnd::Reason::kStopId) {
      finish = {.kind = FinishKind::kStopId, .stop_id = end.stop_id};
    }
    FinishChoice(index, finish);
  }

  ScoredId Scored(const IdLogprob& from) const {
    return {from.id, std::string(model_->tokenizer->TokenBytes(from.id)), from.logprob};
  }
  ScoredToken Scored(int32_t id, const PlaceLogprobs& place) const {
    ScoredToken token{Scored(IdLogprob{id, place.logprob})};
    for (const IdLogprob& likely : place.top) token.top.push_back(Scored(likely));
    return token;
  }

  std::vector<ScoredToken> ScorePrompt(Choice& choice, const std::vector<PlaceLogprobs>& places) {
    std::vector<ScoredToken> scored;
    std::vector<int32_t>& ids = choice.unscored_prompt;
    size_t used = 0;
    if (!choice.prompt_begun && !ids.empty()) {
      // It is told with the others, or alone if it is all of the prompt.
      scored.push_back(Scored(ids[used++], {}));
      scored.back().first = true;
      choice.prompt_begun = true;
    }
    for (size_t i = 0; i < places.size() && used < ids.size(); ++i) {
      scored.push_back(Scored(ids[used++], places[i]));
    }
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(used));
    return scored;
  }

  void Deliver(ChoiceUpdate update, OutputPipeline::Output output) {
    Choice& choice = *choices_[update.choice];
    choice.usage.completion_tokens = choice.pipeline.completion_tokens();
    choice.usage.reasoning_tokens = choice.pipeline.reasoning_tokens();
    update.pieces = std::move(output.pieces);
    update.ids = std::move(output.ids);
    update.usage = choice.usage;
    if (update.pieces.empty() && update.ids.empty() && update.scored_prompt.empty()) return;
    if (!observer_->OnUpdate(std::move(update))) PauseSequences(true);
  }

  // `engine`: the end as the engine tells it; what the text says goes before it.
  void FinishChoice(uint32_t index, const ChoiceFinish& engine) {
    Choice& choice = *choices_[index];
    choice.finished = true;
    ChoiceFinish finish = FinishOf(choice.pipeline.text(), engine);
    if (choice.sequence) choice.sequence->SetPaused(false);  // lets the call to the engine end
    observer_->OnUpdate({.choice = index, .usage = choice.usage, .finish = std::move(finish)});
    if (--unfinished_ > 0) return;
    std::shared_ptr<GenerationObserver> observer = std::move(observer_);
    observer_ = nullptr;
    observer->OnFinished();
  }

  void Fail(const absl::Status& status) {
    if (!observer_) return;
    std::shared_ptr<GenerationObserver> observer = std::move(observer_);
    observer_ = nullptr;
    CancelSequences();
    observer->OnError(status, any_admitted_);
  }

  void PauseSequences(bool paused) {
    for (auto& choice : choices_) {
      if (choice->sequence && !choice->finished) choice->sequence->SetPaused(paused);
    }
  }

  void CancelSequences() {
    for (auto& choice : choices_) {
      if (choice->sequence && !choice->finished) choice->sequence->Cancel();
    }
  }

  const std::shared_ptr<const text::ModelText> model_;
  std::mutex mutex_;
  GenerationPlan plan_;
  std::shared_ptr<GenerationObserver>
      observer_;  // null once the last call was made or after Cancel
  std::vector<std::unique_ptr<Choice>> choices_;
  size_t unfinished_ = 0;
  bool any_admitted_ = false;
};

}  // namespace

ChoiceFinish FinishOf(const text::AnswerText& text, ChoiceFinish engine) {
  if (text.stopped_by_string()) {
    engine = {.kind = FinishKind::kStopString, .stop_string = text.stop_string()};
  } else if (text.stopped()) {
    engine = {.kind = FinishKind::kCall};
  }
  engine.complete_calls = text.complete_calls();
  return engine;
}

std::shared_ptr<Generation> StartGeneration(EngineClient* engine,
                                            std::shared_ptr<const text::ModelText> model,
                                            GenerationPlan plan,
                                            std::shared_ptr<GenerationObserver> observer) {
  auto generation =
      std::make_shared<Running>(std::move(model), std::move(plan), std::move(observer));
  generation->Start(engine);
  return generation;
}

}  // namespace quartet::gateway
