#include "kernels/cpu/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/philox.h"

namespace quartet::cpu {
namespace {

constexpr float kMinTemperature = 0.01f;
// What a random number is for: the last word of the generator's counter.
constexpr uint32_t kDraw = 0;
constexpr uint32_t kAccept = 1;
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

bool Banned(int64_t id, const ops::SampleParams& params) {
  if (params.first_banned > 0 && id >= params.first_banned) return true;
  return std::find(params.banned.begin(), params.banned.end(), static_cast<int32_t>(id)) !=
         params.banned.end();
}

bool Allowed(const float* logits, int64_t id, const ops::SampleParams& params) {
  return logits[id] != kNegativeInfinity && !Banned(id, params);
}

// The ids of the row that a predicate on keys lets through, as (id, key).
template <class Fn>
void ForAllowed(const float* logits, int64_t vocab, const ops::SampleParams& params, Fn fn) {
  const int64_t end =
      params.first_banned > 0 ? std::min<int64_t>(vocab, params.first_banned) : vocab;
  for (int64_t id = 0; id < end; ++id) {
    if (Allowed(logits, id, params)) fn(id, LogitKey(logits[id]));
  }
}

// log sum exp of the whole row, whose largest value is `largest`.
double LogSum(const float* logits, int64_t vocab, float largest) {
  double sum = 0.0;
  for (int64_t id = 0; id < vocab; ++id) sum += std::exp(logits[id] - largest);
  return static_cast<double>(largest) + std::log(sum);
}

struct Row {
  bool finite = true;                 // no NaN, no +infinity
  float largest = kNegativeInfinity;  // of all
  int64_t best = -1;                  // the allowed id with the largest logit, lowest on a tie
};

Row Scan(const float* logits, int64_t vocab, const ops::SampleParams& params) {
  Row row;
  float best = kNegativeInfinity;
  for (int64_t id = 0; id < vocab; ++id) {
    const float value = logits[id];
    if (!(value <= std::numeric_limits<float>::max())) row.finite = false;
    row.largest = std::max(row.largest, value);
    if (value > best && !Banned(id, params)) {
      best = value;
      row.best = id;
    }
  }
  return row;
}

// One pass of radix selection: what each value of the key's next byte holds.
struct Histogram {
  std::array<int64_t, 256> count{};
  std::array<double, 256> mass{};
};

// Is `key` kept by the set, given how many of its ties came before?
bool Kept(const KeptSet& kept, uint32_t key, int64_t& ties_seen) {
  if (key != kept.threshold) return key > kept.threshold;
  return ties_seen++ < kept.ties;
}

// The draft's probability among the kept ids; 0 where it is none of them.
double KeptProbability(const float* logits, int64_t vocab, const ops::SampleParams& params,
                       const KeptSet& kept) {
  const double temperature = std::max(params.temperature, kMinTemperature);
  float largest = kNegativeInfinity;
  ForAllowed(logits, vocab, params,
             [&](int64_t id, uint32_t) { largest = std::max(largest, logits[id]); });
  double total = 0.0;
  double draft = 0.0;
  int64_t ties = 0;
  ForAllowed(logits, vocab, params, [&](int64_t id, uint32_t key) {
    if (!Kept(kept, key, ties)) return;
    const double mass = std::exp((static_cast<double>(logits[id]) - largest) / temperature);
    total += mass;
    if (id == params.draft) draft = mass;
  });
  return draft / total;
}

}  // namespace

uint32_t LogitKey(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 becomes +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

KeptSet FindKept(const float* logits, int64_t vocab, const ops::SampleParams& params) {
  const double temperature = std::max(params.temperature, kMinTemperature);
  float largest = kNegativeInfinity;
  int64_t allowed = 0;
  ForAllowed(logits, vocab, params, [&](int64_t id, uint32_t) {
    largest = std::max(largest, logits[id]);
    ++allowed;
  });
  const auto mass = [&](int64_t id) {
    return std::exp((static_cast<double>(logits[id]) - largest) / temperature);
  };
  KeptSet kept{0, 0};  // no finite logit has key 0: everything is above

  // Walks down the sorted row until `enough(count, mass)` holds for what was taken, byte by byte of
  // the key. Masses of one key are equal, so the last step is a division into ties.
  const auto cut = [&](auto enough) {
    uint32_t prefix = 0;
    int64_t taken = 0;
    double taken_mass = 0.0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      Histogram histogram;
      int64_t ties = 0;
      ForAllowed(logits, vocab, params, [&](int64_t id, uint32_t key) {
        if (!Kept(kept, key, ties)) return;
        if (shift < 24 && key >> (shift + 8) != prefix) return;
        const size_t bin = (key >> shift) & 0xFF;
        ++histogram.count[bin];
        histogram.mass[bin] += mass(id);
      });
      int bin = 255;
      while (true) {
        // Empty bins are skipped, so the walk ends in one that holds something.
        if (histogram.count[bin] > 0) {
          const int64_t next = taken + histogram.count[bin];
          const double next_mass = taken_mass + histogram.mass[bin];
          if (enough(next, next_mass)) break;
          taken = next;
          taken_mass = next_mass;
        }
        if (bin == 0) return;  // even everything is not enough: nothing is cut
        --bin;
      }
      prefix = prefix << 8 | static_cast<uint32_t>(bin);
      if (shift == 0) {
        const int64_t available = histogram.count[bin];
        const double each = histogram.mass[bin] / static_cast<double>(available);
        int64_t ties_kept = 1;
        while (ties_kept < available &&
               !enough(taken + ties_kept, taken_mass + each * static_cast<double>(ties_kept))) {
          ++ties_kept;
        }
        kept = {prefix, ties_kept};
      }
    }
  };

  if (params.top_k > 0 && params.top_k < allowed) {
    cut([&](int64_t count, double) { return count >= params.top_k; });
  }
  if (params.top_p < 1.0f) {
    double total = 0.0;
    int64_t ties = 0;
    ForAllowed(logits, vocab, params, [&](int64_t id, uint32_t key) {
      if (Kept(kept, key, ties)) total += mass(id);
    });
    const double wanted = static_cast<double>(std::max(params.top_p, 0.0f)) * total;
    cut([&](int64_t count, double sum) { return count > 0 && sum >= wanted; });
  }
  if (params.min_p > 0.0f) {
    // The largest has mass 1, whatever was cut. Masses fall with the key, so this is a threshold.
    KeptSet lowest = kept;
    bool found = false;
    int64_t ties = 0;
    ForAllowed(logits, vocab, params, [&](int64_t id, uint32_t key) {
      if (!Kept(kept, key, ties) || mass(id) < params.min_p) return;
      if (!found || key < lowest.threshold) {
        lowest = {key, 0};
        found = true;
      }
      if (key == lowest.threshold) ++lowest.ties;
    });
    // min_p above 1 would cut even the best; keep it.
    kept = found ? lowest : KeptSet{LogitKey(largest), 1};
  }
  return kept;
}

ops::SampleResult Sampler::Draw(const float* logits, int64_t vocab,
                                const ops::SampleParams& params) const {
  const Row row = Scan(logits, vocab, params);
  if (!row.finite || row.best < 0) return {.token = -1, .logprob = 0.0f, .finite = false};
  const auto result = [&](int64_t id) -> ops::SampleResult {
    return {.token = static_cast<int32_t>(id),
            .logprob = static_cast<float>(logits[id] - LogSum(logits, vocab, row.largest)),
            .finite = true};
  };
  int64_t token = row.best;
  if (params.temperature > 0.0f) {
    const double temperature = std::max(params.temperature, kMinTemperature);
    const KeptSet kept = FindKept(logits, vocab, params);
    const std::array<uint32_t, 2> key = {static_cast<uint32_t>(params.seed),
                                         static_cast<uint32_t>(params.seed >> 32)};
    if (params.draft >= 0) {
      const auto random = Philox4x32({0, params.position, params.choice, kAccept}, key);
      if (UniformOpen(random[0], random[1]) < KeptProbability(logits, vocab, params, kept)) {
        return result(params.draft);
      }
    }
    double best = -std::numeric_limits<double>::infinity();
    int64_t ties = 0;
    ForAllowed(logits, vocab, params, [&](int64_t id, uint32_t logit_key) {
      if (!Kept(kept, logit_key, ties) || id == params.draft) return;
      const auto random =
          Philox4x32({static_cast<uint32_t>(id), params.position, params.choice, kDraw}, key);
      const double u = UniformOpen(random[0], random[1]);
      const double value = logits[id] / temperature - std::log(-std::log(u));
      if (value > best) {
        best = value;
        token = id;
      }
    });
  }
  return result(token);
}

float Sampler::LogProb(const float* logits, int64_t vocab, int32_t target) const {
  const float largest = *std::max_element(logits, logits + vocab);
  return static_cast<float>(logits[target] - LogSum(logits, vocab, largest));
}

void Sampler::Top(const float* logits, int64_t vocab, std::span<ops::TokenLogProb> out) const {
  // Sorted as it grows; `logprob` holds the logit until the end. Ids ascend, so that an equal one
  // goes behind those that are there.
  size_t held = 0;
  for (int64_t id = 0; id < vocab; ++id) {
    if (held == out.size() && (out.empty() || !(logits[id] > out.back().logprob))) continue;
    size_t at = held < out.size() ? held++ : held - 1;
    for (; at > 0 && logits[id] > out[at - 1].logprob; --at) out[at] = out[at - 1];
    out[at] = {static_cast<int32_t>(id), logits[id]};
  }
  if (held == 0) return;
  const double log_sum = LogSum(logits, vocab, out[0].logprob);
  for (size_t i = 0; i < held; ++i) {
    out[i].logprob = static_cast<float>(out[i].logprob - log_sum);
  }
}

}  // namespace quartet::cpu
