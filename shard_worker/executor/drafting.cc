// The draft layer's part of a step.

#include "absl/status/status.h"
#include "shard_worker/executor/executor.h"

namespace quartet {

// The draft layer's entry of a prefix's last position depends on the token behind the prefix, which
// only now is known. The pool that ends there keeps its key: the rows that it was made of are not
// at hand, and one entry in four is all that it knows of this one.
absl::Status Executor::RemakePrefixEntry(const Live& entry, const ops::Segment& segment) {
  Activations& a = model_.activations();
  ops::Backend& backend = model_.backend();
  const ModelConfig& config = model_.config();
  const int64_t position = segment.position - 1;
  const ops::KvLayer kv = pools_.kv(static_cast<int>(config.layers));
  std::byte* key = kv.data + segment.pages[position / kTokensPerPage] * kv.page_stride +
                   kv.pool_key_offset +
                   position % kTokensPerPage / config.index_kpool * pools_.pool_key_row_bytes();
  backend.Copy(a.mtp_h, pools_.hidden(segment.slot), config.hidden * sizeof(float));
  backend.Copy(a.head_in, key, pools_.pool_key_row_bytes());
  const ops::Segment one = {.rows = 1,
                            .slot = segment.slot,
                            .position = static_cast<int>(position),
                            .pages = segment.pages};
  absl::Status status = model_.Draft({&ids_[entry.row_begin], 1}, {&one, 1});
  backend.Copy(key, a.head_in, pools_.pool_key_row_bytes());
  return status;
}

absl::Status Executor::Draft(std::vector<Live>& live) {
  // The draft layer's rows: those of the sequences that want it, without gaps; of a window those
  // that were accepted.
  Activations& a = model_.activations();
  ops::Backend& backend = model_.backend();
  const int64_t width = model_.config().hidden;
  std::vector<Live*> drafting;
  std::vector<ops::Segment> segments;
  std::vector<int32_t> next;
  for (size_t i = 0; i < live.size(); ++i) {
    Live& entry = live[i];
    const v1::Row& row = *entry.checked.row;
    if (!row.draft() || !entry.checked.sequence->failure.ok()) continue;
    if (entry.at_prefix_end) {
      if (absl::Status s = RemakePrefixEntry(entry, segments_[entry.segment]); !s.ok()) return s;
    }
    segments.push_back({.row_begin = static_cast<int>(next.size()),
                        .rows = entry.kept,
                        .slot = segments_[entry.segment].slot,
                        .position = segments_[entry.segment].position,
                        .pages = segments_[entry.segment].pages});
    const auto first = ids_.begin() + entry.row_begin;
    next.insert(next.end(), first + 1, first + entry.kept);
    next.push_back(row.sample() ? entry.drawn : row.mtp_next());
    drafting.push_back(&entry);
  }
  if (drafting.empty()) return absl::OkStatus();
  for (size_t i = 0; i < drafting.size(); ++i) {
    backend.Copy(a.mtp_h + segments[i].row_begin * width, a.h + drafting[i]->row_begin * width,
                 segments[i].rows * width * sizeof(float));
  }
  if (absl::Status s = model_.Draft(next, segments); !s.ok()) return s;

  // Each pass turns the last row of every chain into one draft; the row after it, made from that
  // draft and this pass's hidden row, is scratch in the caches: the next real rows overwrite it.
  while (true) {
    std::vector<Live*> chain;
    std::vector<int> last_rows;
    std::vector<ops::Segment> chain_segments;
    for (size_t i = 0; i < drafting.size(); ++i) {
      const auto wanted = static_cast<int>(drafting[i]->checked.row->draft_chain());
      if (drafting[i]->result->drafts_size() >= wanted) continue;
      chain.push_back(drafting[i]);
      last_rows.push_back(segments[i].row_begin + segments[i].rows - 1);
      ops::Segment segment = segments[i];
      segment.position += segment.rows;
      segment.rows = 1;
      chain_segments.push_back(segment);
    }
    if (chain.empty()) return absl::OkStatus();

    draws_.assign(chain.size(), ops::SampleParams());
    for (size_t i = 0; i < chain.size(); ++i) {
      draws_[i].first_banned = chain[i]->checked.sequence->sampling.common().first_banned;
    }
    drawn_.resize(chain.size());
    if (absl::Status s = model_.Draw(a.mtp_o, last_rows, draws_, drawn_); !s.ok()) return s;

    drafting.clear();
    segments.clear();
    next.clear();
    for (size_t i = 0; i < chain.size(); ++i) {
      if (drawn_[i].token < 0) continue;  // not finite: no more drafts, the sequence itself is well
      AddDraft(*chain[i], drawn_[i].token);
      if (chain[i]->result->drafts_size() ==
          static_cast<int>(chain[i]->checked.row->draft_chain())) {
        continue;
      }
      ops::Segment segment = chain_segments[i];
      segment.row_begin = static_cast<int>(next.size());
      backend.Copy(a.mtp_h + segment.row_begin * width, a.mtp_o + last_rows[i] * width,
                   width * sizeof(float));
      next.push_back(drawn_[i].token);
      segments.push_back(segment);
      drafting.push_back(chain[i]);
    }
    if (drafting.empty()) return absl::OkStatus();
    if (absl::Status s = model_.Draft(next, segments); !s.ok()) return s;
  }
}

void Executor::AddDraft(Live& entry, int32_t draft) {
  Sequence& sequence = *entry.checked.sequence;
  const int place = entry.result->drafts_size();
  // The token drawn last stands at `absorbed`, its first draft behind it.
  draft = options_.spoiler.Spoil(sequence.sampling.common(), limits_.vocab_size,
                                 sequence.absorbed + 1 + place, place + 1, draft);
  entry.result->add_drafts(draft);
  if (entry.checked.row->sample()) sequence.drafts.push_back(draft);
  ++stats_.draft_tokens;
}

}  // namespace quartet
