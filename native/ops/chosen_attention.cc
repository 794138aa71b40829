#include "ops/chosen_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "base/error.h"

namespace ellm {

ChosenAttention::ChosenAttention(const AttentionSpec& spec)
    : spec_(spec),
      group_(spec.num_heads / spec.num_kv_heads),
      dim_(padded_dim(spec.head_dim)),
      scratch_(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.max_positions) {
  if (group_ <= kMaxGroup) return;
  throw Error(ErrorKind::kUnsupported, "query heads that share a KV head, with bounded or sparse attention",
              "", std::nullopt, std::to_string(group_), "at most " + std::to_string(kMaxGroup));
}

void ChosenAttention::run(Machine& machine, const Step& step, int rank) const {
  // Calls body(i) for every unit of work, each on one thread; everybody is through when it returns.
  const auto share_out = [&](int64_t units, auto body) {
    while (true) {
      const int64_t unit = machine.next_item.fetch_add(1, std::memory_order_relaxed);
      if (unit >= units) break;
      body(unit);
    }
    machine.pool->barrier([&] { machine.next_item.store(0, std::memory_order_relaxed); });
  };
  const int64_t kv_heads = spec_.num_kv_heads;
  Waves waves(step);
  while (const Wave* const next = waves.next()) {
    const Wave& wave = *next;
    const int64_t pieces = wave.most_segments + 1;
    share_out(wave.count * kv_heads * pieces, [&](int64_t unit) {
      const WavePart& part = wave.parts[static_cast<size_t>(unit / pieces / kv_heads)];
      const int kv_head = static_cast<int>(unit / pieces % kv_heads);
      const int32_t piece = static_cast<int32_t>(unit % pieces);
      if (piece == wave.most_segments) {
        attend_own(machine, part, kv_head, rank);
      } else if (piece * kSegmentBlocks < part.blocks) {
        estimate(machine, part, kv_head, piece, rank);
      }
    });
    share_out(wave.rows * kv_heads, [&](int64_t unit) {
      choose(machine, wave.row(unit / kv_heads), static_cast<int>(unit % kv_heads), rank);
    });
    share_out(wave.rows * kv_heads * pieces, [&](int64_t unit) {
      const WaveRow row = wave.row(unit / pieces / kv_heads);
      const int kv_head = static_cast<int>(unit / pieces % kv_heads);
      const int32_t piece = static_cast<int32_t>(unit % pieces);
      if (piece == wave.most_segments) {
        add_means(machine, row, kv_head, rank);
      } else {
        attend_chosen(machine, row, kv_head, piece, rank);
      }
    });
    share_out(int64_t{wave.rows} * spec_.num_heads, [&](int64_t unit) {
      fold(machine, wave.row(unit / spec_.num_heads), static_cast<int>(unit % spec_.num_heads));
    });
    if (rank != 0) continue;
    for (int32_t row = 0; row < wave.rows; ++row) count(wave.row(row));
  }
}

ChosenAttention::Way ChosenAttention::way_of(const WavePart& part, int kv_head) const {
  const ChoiceRule& rule = *part.run->rule;
  if (reads_all(rule, part.blocks)) return Way::kReadAll;
  if (rule.allowances == nullptr) return Way::kChoose;
  const float allowance = rule.allowances[spec_.layer * spec_.num_kv_heads + kv_head];
  if (allowance == 0.0f && rule.max_blocks >= candidate_blocks(part.blocks)) return Way::kReadAll;
  return allowance == kWindowOnly ? Way::kReadWindow : Way::kChoose;
}

void ChosenAttention::load_queries(const Machine& machine, const WavePart& part, int kv_head, int first,
                                   int count, float* queries) const {
  const SlotMemory& qkv = machine.slots[static_cast<size_t>(spec_.qkv)];
  for (int i = 0; i < count; ++i) {
    const int64_t row = int64_t{part.run->first_row} + part.first + (first + i) / group_;
    const int head = kv_head * group_ + (first + i) % group_;
    const float* const source = qkv.row(row) + head * spec_.head_dim;
    float* const query = queries + i * dim_;
    for (int e = 0; e < spec_.head_dim; ++e) query[e] = source[e] * spec_.scale;
    std::fill(query + spec_.head_dim, query + dim_, 0.0f);
  }
}

void ChosenAttention::attend_own(Machine& machine, const WavePart& part, int kv_head, int rank) const {
  const ChosenScratch::Thread thread = scratch_.thread(rank);
  const KvStore& kv = *machine.kv;
  const int32_t block = part.run->blocks[part.blocks];
  const uint8_t* const keys = kv.float_keys(spec_.layer, kv_head, block);
  const uint8_t* const values = kv.float_values(spec_.layer, kv_head, block);
  const int queries = part.rows * group_;
  for (int first = 0; first < queries; first += kMaxQueries) {
    const int count = std::min(kMaxQueries, queries - first);
    load_queries(machine, part, kv_head, first, count, thread.queries);
    const float* q[kMaxQueries];
    int32_t begin[kMaxQueries] = {};
    int32_t end[kMaxQueries];
    float max[kMaxQueries], sum[kMaxQueries];
    float* out[kMaxQueries];
    AttentionState own[kMaxQueries];
    for (int i = 0; i < count; ++i) {
      const int32_t row = (first + i) / group_;
      own[i] = scratch_.result(part.first_row + row, kv_head * group_ + (first + i) % group_,
                               scratch_.own_piece());
      q[i] = thread.queries + i * dim_;
      end[i] = (part.run->start + part.first + row) % kBlockTokens + 1;
      out[i] = own[i].out;
    }
    machine.kernels->attend_f32({&keys, &values, spec_.head_dim, count, q, begin, end, thread.scores, max,
                                 sum, out, Prefetch::kNothing, nullptr});
    for (int i = 0; i < count; ++i) {
      *own[i].max = max[i];
      *own[i].sum = sum[i];
    }
  }
}

void ChosenAttention::estimate(Machine& machine, const WavePart& part, int kv_head, int32_t segment,
                               int rank) const {
  if (!has_estimate(part, kv_head)) return;
  const ChoiceRule& rule = *part.run->rule;
  const Observation* const observed = part.run->observed;
  const ChosenScratch::Thread thread = scratch_.thread(rank);
  const uint8_t* blocks[kSegmentBlocks];
  const int32_t first_block = segment * kSegmentBlocks;
  const int32_t num_blocks = std::min(kSegmentBlocks, part.blocks - first_block);
  for (int32_t b = 0; b < num_blocks; ++b) blocks[b] = stored(machine, part, kv_head, first_block + b);
  const int32_t next = first_block + machine.pool->size() * kSegmentBlocks;
  const uint8_t* const next_block = next < part.blocks ? stored(machine, part, kv_head, next) : nullptr;
  // Row by row: what a scan reads depends on all queries of a call.
  const int calls = (group_ + kMaxQueries - 1) / kMaxQueries;
  for (int call = 0; call < part.rows * calls; ++call) {
    const int head = call % calls * kMaxQueries;
    const int first = call / calls * group_ + head;
    const int count = std::min(kMaxQueries, group_ - head);
    load_queries(machine, part, kv_head, first, count, thread.queries);
    const float* q[kMaxQueries];
    float* max[kMaxQueries];
    float* sum[kMaxQueries];
    for (int i = 0; i < count; ++i) {
      const int32_t wave_row = part.first_row + call / calls;
      q[i] = thread.queries + i * dim_;
      max[i] = scratch_.mass_max(wave_row, kv_head * group_ + head + i) + first_block;
      sum[i] = scratch_.mass_sum(wave_row, kv_head * group_ + head + i) + first_block;
    }
    const MassArgs args = {blocks, num_blocks, spec_.head_dim,
                           count,  q,          max,
                           sum,    next_block, stored(machine, part, kv_head, part.blocks - 1)};
    const auto estimate_as = [&](Estimate kind) {
      estimate_by(machine, kind, part, args, kv_head, first_block, first, thread);
    };
    if (observed != nullptr) {
      for (const Estimate kind : {Estimate::kExact, Estimate::kScan, Estimate::kMean}) {
        if (observed->masses[static_cast<int>(kind)] != nullptr && kind != rule.estimate) estimate_as(kind);
      }
    }
    estimate_as(rule.estimate);
  }
}

void ChosenAttention::estimate_by(Machine& machine, Estimate kind, const WavePart& part, const MassArgs& args,
                                  int kv_head, int32_t first_block, int first,
                                  const ChosenScratch::Thread& thread) const {
  switch (kind) {
    case Estimate::kScan: machine.kernels->scan_int8(args); break;
    case Estimate::kMean: machine.kernels->mean_int8(args); break;
    case Estimate::kExact: {
      int32_t begin[kMaxQueries] = {};
      int32_t end[kMaxQueries];
      std::fill_n(end, args.queries, args.count * kBlockTokens);
      machine.kernels->score_int8({args.blocks, nullptr, args.head_dim, args.queries, args.q, begin, end,
                                   thread.scores, nullptr, nullptr, nullptr, Prefetch::kKeys,
                                   args.next_block});
      for (int i = 0; i < args.queries; ++i) {
        const float* const found = thread.scores + i * kSegmentTokens;
        machine.kernels->block_masses(found, args.count, args.max[i], args.sum[i]);
        float* const kept =
            scratch_.scores(part.first_row + (first + i) / group_, kv_head * group_ + (first + i) % group_);
        std::memcpy(kept + first_block * kBlockTokens, found, sizeof(float) * kBlockTokens * args.count);
      }
      break;
    }
  }
  const Observation* const observed = part.run->observed;
  if (observed == nullptr || observed->masses[static_cast<int>(kind)] == nullptr) return;
  for (int i = 0; i < args.queries; ++i) {
    const int64_t row = part.first + (first + i) / group_;
    const int64_t head = kv_head * group_ + (first + i) % group_;
    const int64_t place =
        ((row * observed->layers + spec_.layer) * spec_.num_heads + head) * observed->blocks;
    float* const target = observed->masses[static_cast<int>(kind)] + place + first_block;
    for (int32_t b = 0; b < args.count; ++b) target[b] = args.max[i][b] + std::log(args.sum[i][b]);
  }
}

void ChosenAttention::choose(Machine& machine, const WaveRow& row, int kv_head, int rank) const {
  const ChoiceRule& rule = *row.part->run->rule;
  const int32_t blocks = row.part->blocks;
  int32_t* const ids = scratch_.chosen(row.index, kv_head);
  int32_t* const count = scratch_.chosen_count(row.index, kv_head);
  const int first_head = kv_head * group_;
  const Way way = way_of(*row.part, kv_head);
  for (int h = 0; h < group_; ++h) scratch_.total(row.index, first_head + h)->skipped = 0.0f;
  if (way != Way::kChoose) {
    *count = 0;
    for (int32_t b = 0; b < blocks; ++b) {
      if (way == Way::kReadAll || b < kSinkBlocks || b >= blocks - kWindowBlocks) ids[(*count)++] = b;
    }
  }
  if (!has_estimate(*row.part, kv_head)) return;
  const ChosenScratch::Thread thread = scratch_.thread(rank);
  float* const shares = thread.shares;
  std::fill_n(shares, blocks, 0.0f);
  const float* masses[kMaxGroup];
  float units[kMaxGroup];
  float skipped[kMaxGroup];
  for (int h = 0; h < group_; ++h) {
    const int head = first_head + h;
    const AttentionState own = scratch_.result(row.index, head, scratch_.own_piece());
    const bool scaled = rule.estimate == Estimate::kScan && rule.scales != nullptr;
    const float scale = scaled ? rule.scales[spec_.layer * spec_.num_heads + head] : 1.0f;
    const MassTotal all = machine.kernels->normalise_masses(scratch_.mass_max(row.index, head),
                                                            scratch_.mass_sum(row.index, head), blocks, scale,
                                                            *own.max, *own.sum);
    scratch_.total(row.index, head)->all = all;
    masses[h] = scratch_.mass_sum(row.index, head);
    units[h] = 1.0f / all.sum;
    for (int32_t b = 0; b < blocks; ++b) shares[b] = std::max(shares[b], masses[h][b] * units[h]);
  }
  if (way == Way::kChoose) {
    const float* const factors = rule.allowances;
    const float factor = factors == nullptr ? 1.0f : factors[spec_.layer * spec_.num_kv_heads + kv_head];
    const float allowance = rule.mass < 1.0f ? (1.0f - rule.mass) * factor : 0.0f;
    BlockChooser chooser(thread.chooser, scratch_.max_blocks(), group_);
    *count = chooser.choose(allowance, rule.max_blocks, blocks, group_, masses, units, shares, ids, skipped);
    for (int h = 0; h < group_; ++h) scratch_.total(row.index, first_head + h)->skipped = skipped[h];
  }
  if (row.part->run->observed != nullptr) observe(row, kv_head, shares);
}

void ChosenAttention::attend_chosen(Machine& machine, const WaveRow& row, int kv_head, int32_t piece,
                                    int rank) const {
  const int32_t* const ids = scratch_.chosen(row.index, kv_head);
  const int32_t first = piece * kSegmentBlocks;
  const int32_t count = std::min(kSegmentBlocks, *scratch_.chosen_count(row.index, kv_head) - first);
  if (count <= 0) return;
  const ChosenScratch::Thread thread = scratch_.thread(rank);
  const uint8_t* blocks[kSegmentBlocks];
  for (int32_t b = 0; b < count; ++b) blocks[b] = stored(machine, *row.part, kv_head, ids[first + b]);
  const int32_t next = first + machine.pool->size() * kSegmentBlocks;
  const uint8_t* const next_block = next < *scratch_.chosen_count(row.index, kv_head)
                                        ? stored(machine, *row.part, kv_head, ids[next])
                                        : nullptr;
  const bool scored = row.part->run->rule->estimate == Estimate::kExact && has_estimate(*row.part, kv_head);
  for (int head = 0; head < group_; head += kMaxQueries) {
    const int queries = std::min(kMaxQueries, group_ - head);
    const float* q[kMaxQueries];
    int32_t begin[kMaxQueries] = {};
    int32_t end[kMaxQueries];
    float max[kMaxQueries], sum[kMaxQueries];
    float* out[kMaxQueries];
    AttentionState part[kMaxQueries];
    load_queries(machine, *row.part, kv_head, (row.index - row.part->first_row) * group_ + head, queries,
                 thread.queries);
    for (int i = 0; i < queries; ++i) {
      part[i] = scratch_.result(row.index, kv_head * group_ + head + i, piece);
      q[i] = thread.queries + i * dim_;
      end[i] = count * kBlockTokens;
      out[i] = part[i].out;
      if (!scored) continue;
      const float* const known = scratch_.scores(row.index, kv_head * group_ + head + i);
      for (int32_t b = 0; b < count; ++b) {
        std::memcpy(thread.scores + i * kSegmentTokens + b * kBlockTokens,
                    known + int64_t{ids[first + b]} * kBlockTokens, sizeof(float) * kBlockTokens);
      }
    }
    const Prefetch prefetch = head > 0 ? Prefetch::kNothing : scored ? Prefetch::kValues : Prefetch::kBlock;
    const AttentionArgs args = {blocks, nullptr, spec_.head_dim, queries,   q, begin, end, thread.scores, max,
                                sum,    out,     prefetch,       next_block};
    (scored ? machine.kernels->weigh_int8 : machine.kernels->attend_int8)(args);
    for (int i = 0; i < queries; ++i) {
      *part[i].max = max[i];
      *part[i].sum = sum[i];
    }
  }
}

void ChosenAttention::add_means(Machine& machine, const WaveRow& row, int kv_head, int rank) const {
  const int32_t blocks = row.part->blocks;
  const int32_t read = *scratch_.chosen_count(row.index, kv_head);
  const int32_t* const ids = scratch_.chosen(row.index, kv_head);
  if (read == blocks || way_of(*row.part, kv_head) != Way::kChoose) return;
  const ChosenScratch::Thread thread = scratch_.thread(rank);
  int32_t count = 0;
  for (int32_t block = 0, i = 0; block < blocks; ++block) {
    if (i < read && ids[i] == block) {
      ++i;
      continue;
    }
    thread.skipped[count] = stored(machine, *row.part, kv_head, block);
    for (int h = 0; h < group_; ++h) {
      thread.weights[int64_t{h} * scratch_.max_blocks() + count] =
          scratch_.mass_sum(row.index, kv_head * group_ + h)[block];
    }
    ++count;
  }
  for (int head = 0; head < group_; head += kMaxQueries) {
    const int queries = std::min(kMaxQueries, group_ - head);
    const float* weights[kMaxQueries];
    float* out[kMaxQueries];
    for (int i = 0; i < queries; ++i) {
      const AttentionState part =
          scratch_.result(row.index, kv_head * group_ + head + i, scratch_.skipped_piece());
      weights[i] = thread.weights + int64_t{head + i} * scratch_.max_blocks();
      out[i] = part.out;
      *part.max = scratch_.total(row.index, kv_head * group_ + head + i)->all.max;
      *part.sum = 0.0f;
      for (int32_t b = 0; b < count; ++b) *part.sum += weights[i][b];
    }
    machine.kernels->weigh_means({thread.skipped, count, spec_.head_dim, queries, weights, out});
  }
}

void ChosenAttention::fold(Machine& machine, const WaveRow& row, int head) const {
  const int kv_head = head / group_;
  const int32_t read = *scratch_.chosen_count(row.index, kv_head);
  const int32_t pieces = (read + kSegmentBlocks - 1) / kSegmentBlocks;
  const AttentionState own = scratch_.result(row.index, head, scratch_.own_piece());
  const AttentionState state = pieces > 0 ? scratch_.result(row.index, head, 0) : own;
  for (int32_t piece = 1; piece < pieces; ++piece)
    machine.kernels->fold(state, scratch_.result(row.index, head, piece), spec_.head_dim);
  if (read < row.part->blocks && way_of(*row.part, kv_head) == Way::kChoose) {
    machine.kernels->fold(state, scratch_.result(row.index, head, scratch_.skipped_piece()), spec_.head_dim);
  }
  if (pieces > 0) machine.kernels->fold(state, own, spec_.head_dim);
  const SlotMemory& out = machine.slots[static_cast<size_t>(spec_.out)];
  machine.kernels->finish(state, spec_.head_dim, out.row(row.of_step()) + int64_t{head} * spec_.head_dim);
}

void ChosenAttention::count(const WaveRow& row) const {
  ChoiceCounts& counts = row.part->run->counts[row.within_run];
  for (int kv_head = 0; kv_head < spec_.num_kv_heads; ++kv_head) {
    const int32_t read = *scratch_.chosen_count(row.index, kv_head);
    counts.blocks_total += row.part->blocks;
    counts.blocks_read += read;
    if (read > kUsualBlocks + kSinkBlocks + kWindowBlocks) ++counts.widened;
  }
  for (int head = 0; head < spec_.num_heads; ++head)
    counts.skipped_mass += scratch_.total(row.index, head)->skipped;
  counts.heads += spec_.num_heads;
}

}  // namespace ellm
