#include "services/coordinator/simulation/scenario.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/coordinator/simulation/random.h"

namespace quartet::simulation {

using coordinator::CoreConfig;
using coordinator::kChunkMultiple;
using coordinator::PlanRow;
using coordinator::Request;

namespace {

// Streams of a seed.
constexpr uint64_t kEngineStream = 1;
constexpr uint64_t kClientStream = 2;
constexpr uint64_t kFaultStream = 3;
constexpr uint64_t kPromptStream = 4;
constexpr uint64_t kScheduleStream = 6;  // 5: of the links
constexpr uint64_t kSchedulingStream = 7;
constexpr uint64_t kTierStream = 8;
constexpr uint64_t kTierFaultStream = 9;
constexpr uint64_t kDiskEndStream = 10;

// Sequences that outgrow the pages that are left, so that others give up theirs.
void MakeTight(Random& random, CoreConfig& config) {
  config.slots = random.Between(3, 6);
  config.page_tokens = 64;
  config.max_model_len = random.Between(200, 700);
  config.pages = (config.max_model_len + 63) / 64 + random.Below(3);
}

// Units are pages of any size here, and blocks of a few of them, so that edges come often.
void AddCache(Random& random, CoreConfig& config) {
  if (random.Permille(200)) return;
  config.snapshots = random.Permille(300) ? random.Between(1, 4) : random.Between(5, 60);
  config.page_bytes = 1;
  config.snapshot_bytes = random.Between(1, 40);
  config.snapshot_policy.unit_tokens = config.page_tokens;
  config.snapshot_policy.block_tokens = config.page_tokens * random.OneOf({1, 2, 3, 9});
  config.snapshot_policy.turn = random.Permille(900);
  config.snapshot_policy.branch = random.Permille(900);
}

void AddSpeculation(Random& random, CoreConfig& config) {
  if (random.Permille(200)) return;
  config.num_speculative_tokens = random.Between(1, coordinator::kMaxDraftTokens);
  config.spec_dynamic = random.Permille(500);
  if (random.Permille(500)) config.spec_acceptance = coordinator::Acceptance::kCoupled;
}

// A device that a few conversations fill, so that much moves between the tiers.
void MakeSmallDevice(Random& random, CoreConfig& config) {
  config.page_tokens = 64;
  config.max_model_len = random.Between(500, 2500);
  const uint32_t context = (config.max_model_len + 63) / 64;
  config.pages = context + random.Below(context / 2);
  config.snapshots = random.Between(2, 10);
  config.snapshot_policy.unit_tokens = 64;
  config.snapshot_policy.block_tokens = 64 * random.OneOf({1, 2, 9});
}

// Room below the device for a part of what passes through it, or for all.
void AddTiers(uint64_t seed, Tiers tiers, CoreConfig& config) {
  Random random(seed, kTierStream);
  const bool host = random.Permille(600), disk = random.Permille(500);
  if (config.snapshots == 0 || tiers == Tiers::kDevice) return;
  if (tiers == Tiers::kAsDrawn && !host) return;
  if (random.Permille(700)) MakeSmallDevice(random, config);
  const uint32_t context = (config.max_model_len + config.page_tokens - 1) / config.page_tokens;
  config.host_pages = random.Between(1, random.OneOf({context / 2 + 1, 2 * context, 4 * context}));
  config.host_snapshots = random.Between(1, random.OneOf({4, 40}));
  config.copy_bytes_per_step = random.OneOf({1, 5, 50, 1000});
  if (tiers == Tiers::kHost || (tiers == Tiers::kAsDrawn && !disk)) return;
  config.disk_pages = random.Between(1, random.OneOf({context, 6 * context}));
  config.disk_snapshots = random.Between(1, random.OneOf({4, 60}));
}

CoreConfig RandomConfig(Random& random, bool tight) {
  CoreConfig config;
  config.epoch = random.Between(1, 1000);
  config.vocab_size = random.OneOf({50, 1000, 154880});
  config.slots = random.Between(1, 6);
  config.page_tokens = random.OneOf({64, 128, 256, 256, 256});
  switch (random.Below(3)) {
    case 0:
      config.max_model_len = random.Between(300, 1200);
      break;
    case 1:
      config.max_model_len = random.Between(4650, 6000);
      break;
    default:
      config.max_model_len = random.Between(6000, 20000);
  }
  const uint32_t context = (config.max_model_len + config.page_tokens - 1) / config.page_tokens;
  config.pages = random.Below(3) == 0 ? context * config.slots
                                      : random.Between(context, context + context / 2);
  if (tight) MakeTight(random, config);
  const uint32_t least = kChunkMultiple + config.slots - 1;
  config.max_num_batched_tokens =
      std::max(least, random.OneOf({least, 128, 200, 512, 512, 1000, 2048, 4096}));
  config.prefill_chunk = random.Below(2) == 0 ? 0 : kChunkMultiple * random.Between(1, 8);
  config.max_queued_requests = random.Between(2, 24);
  config.max_queued_tokens = random.Between(500, 60000);
  AddCache(random, config);
  AddSpeculation(random, config);
  return config;
}

// Lengths at the edges of pages and of blocks of 2,304 tokens, some short, some long.
uint32_t RandomPromptTokens(Random& random, uint32_t max_model_len) {
  const uint32_t longest = max_model_len - 1;
  const uint32_t kind = random.Below(20);
  uint32_t tokens = random.Between(1, 150);
  if (kind < 4) tokens = random.OneOf({1, 255, 256, 257, 2303, 2304, 2305, 4607, 4608, 4609});
  if (kind == 4 || kind == 5) tokens = random.Between(1, 2000);
  if (kind == 6) tokens = random.Between(1, longest);
  if (tokens <= longest) return tokens;
  return random.Permille(150) ? longest : random.Between(1, std::min(150u, longest));
}

// How the engine shares its time.
void DrawSchedule(Random& random, CoreConfig& config) {
  config.prefill_quantum_ms = random.OneOf({0, 0, 1, 20, 100, 300});
  config.min_decode_share = random.OneOf({0, 0, 1, 2, 3}) / 4.0;
  config.max_overtakes = random.OneOf({0, 1, 2, 8, 8});
  config.max_wait_ms = random.OneOf({1, 100, 20000});
  if (random.Permille(150)) config.queue_timeout_ms = random.Between(1, 20000);
  if (random.Permille(150)) config.total_timeout_ms = random.Between(1, 60000);
  config.steps_in_flight = random.Between(1, 2);
}

class RandomClients {
 public:
  RandomClients(uint64_t seed, const CoreConfig& config, bool long_answers, TimeUs mean_gap_us,
                TimeUs step_us)
      : random_(seed, kClientStream),
        scheduling_(seed, kSchedulingStream),
        config_(config),
        long_answers_(long_answers),
        mean_gap_us_(mean_gap_us),
        step_us_(static_cast<uint32_t>(step_us)) {}

  std::optional<ClientScript> operator()() {
    ClientScript client;
    // Now and then many come at once.
    client.gap_us = random_.Permille(150)
                        ? 0
                        : static_cast<TimeUs>(random_.Gap(static_cast<uint64_t>(mean_gap_us_)));
    FillRequest(client.request);
    FillScheduling(client.request);
    FillBehaviour(client);
    return client;
  }

 private:
  int32_t Id() { return static_cast<int32_t>(random_.Below(config_.vocab_size)); }

  void FillRequest(Request& request) {
    const uint32_t prompt = RandomPromptTokens(random_, config_.max_model_len);
    const uint32_t room = config_.max_model_len - prompt;
    uint32_t max_tokens = 0;  // the rest of the context
    switch (random_.Below(8)) {
      case 0:
        break;
      case 1:
        max_tokens = random_.Between(1, 2);
        break;
      default:
        max_tokens = random_.Between(1, long_answers_ ? 800 : 60);
    }
    request = MakeRequest(random_.Next(), prompt, std::min(max_tokens, room), config_.vocab_size);
    // Many prompts begin with one of a few texts, to a place of their own.
    if (random_.Permille(600)) {
      const Request system = MakeRequest(random_.Below(4), prompt, 1, config_.vocab_size);
      const auto shared = std::min(prompt, random_.OneOf({64, 300, 1000, 2304, 2500, 4608}));
      std::copy_n(system.prompt_ids.begin(), random_.Permille(300) ? random_.Below(shared) : shared,
                  request.prompt_ids.begin());
      if (random_.Permille(500)) request.system_prefix_tokens = random_.Below(shared + 1);
      request.cache_read_only = random_.Permille(50);
    }
    request.sampling.choice = random_.Below(3);
    request.logprobs = random_.Permille(250);
    request.prompt_logprobs = random_.Permille(200);
    request.ignore_eos = random_.Permille(200);
    // By the seed, so that the rest of a scenario is what it was without them.
    if (request.logprobs) request.top_logprobs = request.sampling.seed % 3;
    if (request.prompt_logprobs) request.prompt_top_logprobs = request.sampling.seed / 4 % 3;
    if (request.sampling.seed % 8 == 0) request.sampling.repetition_penalty = 1.5f;
    if (request.sampling.seed % 16 == 1) request.sampling.frequency_penalty = 0.5f;
    if (request.sampling.seed % 16 == 2) request.thinking = {.max_tokens = 9, .end_ids = {7}};
    if (random_.Permille(100)) {
      request.first_padding_id = static_cast<int32_t>(config_.vocab_size - random_.Below(8));
    }
    for (uint32_t n = long_answers_ ? 0 : random_.Below(3); n > 0; --n)
      request.end_ids.push_back(Id());
    const bool stops_soon = random_.Permille(long_answers_ ? 50 : 500);
    const uint32_t stops = stops_soon ? config_.vocab_size / 100 : random_.Below(2);
    for (uint32_t n = std::min(stops, 100u); n > 0; --n) request.stop_ids.push_back(Id());
  }

  void FillScheduling(Request& request) {
    request.fair_key = scheduling_.Below(3);
    if (scheduling_.Permille(200)) request.request_class = coordinator::RequestClass::kBatch;
    if (scheduling_.Permille(100)) request.first_token_deadline_ms = scheduling_.Between(1, 5000);
    if (scheduling_.Permille(100)) request.total_deadline_ms = scheduling_.Between(1, 20000);
  }

  void FillBehaviour(ClientScript& client) {
    const auto soon = [this] { return static_cast<TimeUs>(random_.Below(3 * step_us_)); };
    switch (random_.Below(10)) {
      case 0:
        client.leaves = ClientScript::Leaves::kAfterSubmit;
        client.leave_after_us = soon();
        break;
      case 1:
        client.leaves = ClientScript::Leaves::kAfterAdmission;
        client.leave_after_us = soon();
        break;
      case 2:
        client.leaves = ClientScript::Leaves::kAfterToken;
        client.leave_token = random_.Between(1, 20);
        client.leave_after_us = soon();
        break;
      case 3:
        client.truncate_token = random_.Between(1, 20);
        client.truncate_to = random_.Between(0, client.truncate_token + 1);
        client.truncate_after_us = soon();
        break;
      default:
        break;
    }
    if (random_.Permille(100)) client.read_us = random_.Between(1, 4 * step_us_);
    client.retries = random_.Below(3);
    if (random_.Permille(900)) client.domain = random_.Permille(900) ? 0 : 1;
    if (random_.Permille(700)) client.turns = random_.Between(1, 6);
    client.turn_tokens = random_.Between(1, 200);
    client.think_us = soon();
  }

  Random random_;
  Random scheduling_;
  const CoreConfig config_;
  const bool long_answers_;
  const TimeUs mean_gap_us_;
  const uint32_t step_us_;
};

class RandomFaults {
 public:
  // Engines end in half of the runs only, so that the others see long lives.
  explicit RandomFaults(uint64_t seed)
      : random_(seed, kFaultStream), engines_end_(random_.Permille(500)) {}

  Fault operator()(uint64_t, uint64_t, uint32_t) {
    const uint32_t drawn = random_.Below(2000);
    if (drawn < 20) return Fault::kLate;
    if (drawn < 40) return Fault::kLostThenRepeated;
    if (drawn < 80) return Fault::kDoubled;
    if (drawn >= 90 || !engines_end_ || !random_.Permille(250)) return Fault::kNone;
    return static_cast<Fault>(static_cast<int>(Fault::kStepError) + drawn % 4);
  }

 private:
  Random random_;
  bool engines_end_;
};

// In some runs no tier fails, in some often; more often on the way up, where there is less to do.
class RandomTierFaults {
 public:
  explicit RandomTierFaults(uint64_t seed)
      : random_(seed, kTierFaultStream), permille_(random_.OneOf({0, 0, 2, 10, 100})) {}

  TierFault operator()(uint32_t, const TierCopy& copy) {
    const uint32_t permille = copy.from > copy.to ? std::min(10 * permille_, 300u) : permille_;
    if (permille == 0 || !random_.Permille(permille)) return TierFault::kNone;
    return static_cast<TierFault>(random_.Between(1, kTierFaultKinds - 1));
  }

 private:
  Random random_;
  uint32_t permille_;
};

}  // namespace

TimeUs CostModel::StepUs(const coordinator::StepPlan& plan) const {
  uint64_t tokens = 0;
  uint64_t context = 0;
  for (const PlanRow& row : plan.rows) {
    tokens += row.n_tokens;
    context += row.position;
  }
  return static_cast<TimeUs>(step_us + uint64_t{row_us} * plan.rows.size() +
                             uint64_t{copy_us} * plan.copies.size() +
                             (token_ns * tokens + context_ns * context) / 1000);
}

const char* Name(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "none";
    case Fault::kLate:
      return "late";
    case Fault::kLostThenRepeated:
      return "lost, repeated";
    case Fault::kDoubled:
      return "doubled";
    case Fault::kStepError:
      return "step error";
    case Fault::kWrongHash:
      return "wrong hash";
    case Fault::kFrozen:
      return "frozen";
    case Fault::kKilled:
      return "killed";
  }
  return "";
}

std::function<std::optional<ClientScript>()> Clients(std::vector<ClientScript> clients) {
  auto list = std::make_shared<std::vector<ClientScript>>(std::move(clients));
  return [list, next = size_t{0}]() mutable -> std::optional<ClientScript> {
    if (next == list->size()) return std::nullopt;
    return (*list)[next++];
  };
}

Request MakeRequest(uint64_t seed, uint32_t prompt_tokens, uint32_t max_tokens,
                    uint32_t vocab_size) {
  Request request;
  request.sampling.seed = seed;
  request.max_tokens = max_tokens;
  request.prompt_ids.reserve(prompt_tokens);
  Random random(seed, kPromptStream);
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    request.prompt_ids.push_back(static_cast<int32_t>(random.Below(vocab_size)));
  }
  return request;
}

namespace {

// What the copies of one step take at most.
TimeUs CopyUs(const Scenario& scenario) {
  const CoreConfig& config = scenario.config;
  if (config.host_pages == 0) return 0;
  const uint64_t objects =
      std::min<uint64_t>(config.copy_bytes_per_step, config.pages + config.host_pages) + 1;
  return static_cast<TimeUs>(scenario.cost.copy_us * objects) +
         SimDisk::kQueue * scenario.cost.disk_write_us;
}

}  // namespace

Scenario RandomScenario(uint64_t seed, Tiers tiers) {
  Random random(seed, kEngineStream);
  Scenario scenario;
  scenario.seed = seed;
  const bool tight = random.Permille(250);
  scenario.config = RandomConfig(random, tight);
  Random schedule(seed, kScheduleStream);
  DrawSchedule(schedule, scenario.config);
  AddTiers(seed, tiers, scenario.config);
  const CoreConfig& config = scenario.config;
  scenario.ranks = random.OneOf({1, 2, 2, 4});
  scenario.model.vocab_size = config.vocab_size;
  scenario.model.nan_one_in = random.Permille(300) ? 500 : 0;
  scenario.model.draft_percent = random.OneOf({0, 30, 60, 80, 95, 100});
  scenario.cost.step_us = random.Between(500, 20000);
  scenario.cost.row_us = random.Between(0, 1000);
  scenario.cost.token_ns = random.Between(1000, 700000);
  scenario.cost.context_ns = random.Between(0, 50);
  scenario.link_us = random.Between(1, 500);
  scenario.restart_us = random.Between(1000, 3000000);
  scenario.slow_client_tokens = random.Between(1, 40);

  const CostModel& cost = scenario.cost;
  const TimeUs longest_us = cost.step_us + TimeUs{cost.row_us} * config.slots +
                            TimeUs{cost.token_ns} * config.max_num_batched_tokens / 1000 +
                            TimeUs{cost.context_ns} * config.max_model_len * config.slots / 1000 +
                            CopyUs(scenario);
  // Late is at most half of the deadline on top of the step and two ways.
  scenario.config.step_deadline_ms = static_cast<uint32_t>(longest_us / 200 + 100);
  const TimeUs decode_us = cost.step_us + TimeUs{cost.row_us} * config.slots;
  scenario.slow_client_us = decode_us * random.Between(1, 100);
  // A request takes about this long: 300 tokens of prompt and 40 of answer, the latter beside the
  // others of the batch. Load is between half and four times of what the engine can do.
  const TimeUs request_us = TimeUs{cost.token_ns} * 3 / 10 + 40 * decode_us / config.slots;
  scenario.next_client =
      RandomClients(seed, config, tight || random.Permille(250),
                    request_us * random.OneOf({2, 4, 8, 8, 12, 16}) / 8, decode_us);
  scenario.fault = RandomFaults(seed);
  scenario.tier_fault = RandomTierFaults(seed);
  scenario.clean_end = [random = Random(seed, kDiskEndStream)](uint32_t) mutable {
    return random.Permille(500);
  };
  return scenario;
}

std::string Describe(const Scenario& scenario) {
  const CoreConfig& config = scenario.config;
  return absl::StrCat(
      scenario.ranks, " ranks, ", config.slots, " slots, ", config.pages, " pages of ",
      config.page_tokens, ", context ", config.max_model_len, ", budget ",
      config.max_num_batched_tokens, ", chunk ", config.prefill_chunk, ", queue ",
      config.max_queued_requests, " / ", config.max_queued_tokens, " tokens, deadline ",
      config.step_deadline_ms, " ms, ", config.snapshots, " snapshots, block ",
      config.snapshot_policy.block_tokens, ", ", config.num_speculative_tokens,
      config.spec_dynamic ? " or fewer" : "", " drafts, host tier ", config.host_pages,
      " pages and ", config.host_snapshots, " snapshots, disk ", config.disk_pages, " and ",
      config.disk_snapshots, ", ", config.copy_bytes_per_step, " copied a step, ",
      scenario.model.draft_percent, " % right, prefill quantum ", config.prefill_quantum_ms,
      " ms, decode share ", config.min_decode_share, ", steps in flight ", config.steps_in_flight);
}

}  // namespace quartet::simulation
