#include "ops/attention.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "ops/chosen_attention.h"

namespace ellm {
namespace {

// Queries of one work item: their K and V segment (512 tokens) is read from L2 for all of them.
constexpr int kItemQueries = 64;
// Steps of up to this many rows may spread the segments of one head over threads.
constexpr int kSplitRows = 8;

// Consecutive rows of one sequence and one KV head; with int8 KV, rows of one block.
struct Item {
  const RowRun* run;
  int32_t first;  // row index within the run
  int32_t rows;
  int kv_head;
};

using Attend = void (*)(const AttentionArgs&);

// A query of an item: which row and which head, and its place in the item's result arrays.
struct Query {
  int32_t position;
  int64_t row;  // of the step
  int head;
};

class AttentionOp : public Op {
 public:
  AttentionOp(const AttentionSpec& spec, KvType type)
      : spec_(spec), group_(spec.num_heads / spec.num_kv_heads), dim_(padded_dim(spec.head_dim)) {
    if (type == KvType::kInt8 && !spec.window) chosen_.emplace(spec);
  }

  int64_t scratch_bytes(const Machine& machine) const override {
    const int64_t exact =
        (machine.pool->size() * thread_floats() + split_results(machine) * result_floats()) *
        static_cast<int64_t>(sizeof(float));
    return chosen_ ? std::max(exact, chosen_->scratch_bytes(machine)) : exact;
  }
  void set_scratch(uint8_t* scratch) override {
    scratch_ = reinterpret_cast<float*>(scratch);
    if (chosen_) chosen_->set_scratch(scratch);
  }

  void run(Machine& machine, const Step& step, int rank) override {
    const int64_t items = count_items(step);
    if (step.rows <= kSplitRows && items < 2 * machine.pool->size()) {
      run_split(machine, step, rank, items);
    } else {
      run_whole(machine, step, rank, items);
    }
    if (chosen_) {
      // They share the scratch.
      machine.pool->barrier([&] { machine.next_item.store(0, std::memory_order_relaxed); });
      chosen_->run(machine, step, rank);
    }
    const SlotMemory& out = machine.slots[static_cast<size_t>(spec_.out)];
    if (!out.has_quantized) return;
    machine.pool->barrier();
    const int64_t groups = out.width / kGroup;
    const Share share = share_of(step.rows * groups, rank, machine.pool->size());
    for (int64_t i = share.begin; i < share.end; ++i)
      quantize_slot(machine, out, i / groups, i % groups * kGroup, kGroup);
  }

 private:
  // A partial result: max, sum, then the output; rounded to whole cache lines.
  int64_t result_floats() const { return dim_ + 16; }
  // Per thread: scaled queries, scores, a running and a segment result for each query of an item.
  int64_t thread_floats() const {
    return kMaxQueries * int64_t{dim_} + kMaxQueries * int64_t{kSegmentTokens} +
           (item_queries() + kMaxQueries) * result_floats();
  }
  // A power of two, so that items never cross a block: at most 64.
  int item_rows() const {
    int rows = 1;
    while (2 * rows * group_ <= kItemQueries) rows *= 2;
    return rows;
  }
  int item_queries() const { return item_rows() * group_; }
  // Pieces of the longest sequence: its segments, and last the query's own block.
  int32_t max_pieces() const { return own_piece() + 1; }
  int32_t own_piece() const { return (spec_.max_positions + kSegmentTokens - 1) / kSegmentTokens; }
  int64_t split_results(const Machine& machine) const {
    return std::min<int64_t>(kSplitRows, machine.max_rows) * spec_.num_heads * max_pieces();
  }

  int64_t items_of(const RowRun& run) const {
    if (chosen_ && run.rule != nullptr) return 0;
    const int32_t chunks = (run.start + run.count - 1) / item_rows() - run.start / item_rows() + 1;
    return int64_t{chunks} * spec_.num_kv_heads;
  }
  int64_t count_items(const Step& step) const {
    int64_t count = 0;
    for (const RowRun& run : *step.runs) count += items_of(run);
    return count;
  }
  Item item_at(const Step& step, int64_t index) const {
    for (const RowRun& run : *step.runs) {
      const int64_t items = items_of(run);
      if (index < items) {
        // Later rows first: they take longest.
        const int64_t reversed = items - 1 - index;
        const int32_t chunk = run.start / item_rows() + static_cast<int32_t>(reversed / spec_.num_kv_heads);
        const int32_t first = std::max(chunk * item_rows(), run.start) - run.start;
        const int32_t last = std::min((chunk + 1) * item_rows(), run.start + run.count) - run.start;
        return {&run, first, last - first, static_cast<int>(reversed % spec_.num_kv_heads)};
      }
      index -= items;
    }
    return {};
  }
  Query query_of(const Item& item, int index) const {
    const int32_t row = item.first + index / group_;
    return {item.run->start + row, int64_t{item.run->first_row} + row,
            item.kv_head * group_ + index % group_};
  }

  int32_t first_position(int32_t position) const {
    return spec_.window ? std::max(0, position - *spec_.window + 1) : 0;
  }
  // Stored tokens a row at `position` sees: with int8 KV those before its own block, which it sees in
  // float, else all.
  static int32_t stored_end(KvType type, int32_t position) {
    return type == KvType::kInt8 ? position / kBlockTokens * kBlockTokens : position + 1;
  }
  int32_t first_piece(KvType type, int32_t position) const {
    const int32_t first = first_position(position);
    return first < stored_end(type, position) ? first / kSegmentTokens : own_piece();
  }
  // The segments that some row of the item sees stored tokens of are among these.
  int32_t first_segment(const Item& item) const {
    return first_position(item.run->start + item.first) / kSegmentTokens;
  }
  int32_t segments_end(KvType type, const Item& item) const {
    const int32_t end = stored_end(type, item.run->start + item.first + item.rows - 1);
    return (end + kSegmentTokens - 1) / kSegmentTokens;
  }
  // Position of a piece's first token; rows of an item share their own block.
  int32_t piece_start(const Item& item, int32_t piece) const {
    if (piece != own_piece()) return piece * kSegmentTokens;
    return (item.run->start + item.first) / kBlockTokens * kBlockTokens;
  }

  float* thread_scratch(int rank) const { return scratch_ + rank * thread_floats(); }
  static AttentionState state_at(float* result) { return {result, result + 1, result + 16}; }

  // The blocks of a piece, stored or in float; returns what attends to them.
  Attend blocks_of(const Machine& machine, const Item& item, int32_t piece, const uint8_t** keys,
                   const uint8_t** values) const {
    const KvStore& kv = *machine.kv;
    if (piece == own_piece()) {
      const int32_t block = item.run->blocks[piece_start(item, piece) / kBlockTokens];
      keys[0] = kv.float_keys(spec_.layer, item.kv_head, block);
      values[0] = kv.float_values(spec_.layer, item.kv_head, block);
      return machine.kernels->attend_f32;
    }
    const int32_t blocks_end = (item.run->start + item.run->count + kBlockTokens - 1) / kBlockTokens;
    const int32_t first_block = piece * kSegmentBlocks;
    for (int b = 0; b < std::min(kSegmentBlocks, blocks_end - first_block); ++b) {
      const int32_t block = item.run->blocks[first_block + b];
      keys[b] = kv.keys(spec_.layer, item.kv_head, block);
      values[b] = kv.values(spec_.layer, item.kv_head, block);
    }
    switch (kv.shape().type) {
      case KvType::kF32: return machine.kernels->attend_f32;
      case KvType::kF16: return machine.kernels->attend_f16;
      case KvType::kInt8: break;
    }
    return machine.kernels->attend_int8;
  }

  // The first block of a segment of the item, if it has that.
  const uint8_t* first_block(const Machine& machine, const Item& item, int32_t segment) const {
    if (segment >= segments_end(machine.kv->shape().type, item)) return nullptr;
    return machine.kv->keys(spec_.layer, item.kv_head, item.run->blocks[segment * kSegmentBlocks]);
  }

  // Attends queries [first, first + count) of the item over a piece; done(query, state) for each query
  // that sees any of it. `next_segment` is likely what this thread reads next.
  template <class Done>
  void attend_piece(Machine& machine, const Item& item, int32_t piece, int32_t next_segment, int first,
                    int count, float* scratch, Done done) const {
    float* const scaled = scratch;
    float* const scores = scaled + kMaxQueries * dim_;
    float* const results = scores + kMaxQueries * kSegmentTokens;
    const uint8_t* keys[kSegmentBlocks];
    const uint8_t* values[kSegmentBlocks];
    const auto attend = blocks_of(machine, item, piece, keys, values);
    const KvType type = machine.kv->shape().type;
    const SlotMemory& qkv = machine.slots[static_cast<size_t>(spec_.qkv)];
    const float* q[kMaxQueries];
    int32_t begin[kMaxQueries], end[kMaxQueries];
    float max[kMaxQueries], sum[kMaxQueries];
    float* out[kMaxQueries];
    int seen[kMaxQueries];
    AttentionArgs args = {keys,
                          values,
                          spec_.head_dim,
                          0,
                          q,
                          begin,
                          end,
                          scores,
                          max,
                          sum,
                          out,
                          first == 0 ? Prefetch::kBlock : Prefetch::kNothing,
                          first_block(machine, item, next_segment)};
    const int32_t start = piece_start(item, piece);
    for (int i = first; i < first + count; ++i) {
      const Query query = query_of(item, i);
      const int32_t from = std::max(first_position(query.position), start) - start;
      const int32_t seen_end = piece == own_piece() ? query.position + 1 : stored_end(type, query.position);
      const int32_t to = std::min(seen_end - start, kSegmentTokens);
      if (from >= to) continue;
      float* const q_scaled = scaled + args.queries * dim_;
      const float* source = qkv.row(query.row) + query.head * spec_.head_dim;
      for (int e = 0; e < spec_.head_dim; ++e) q_scaled[e] = source[e] * spec_.scale;
      std::fill(q_scaled + spec_.head_dim, q_scaled + dim_, 0.0f);
      q[args.queries] = q_scaled;
      begin[args.queries] = from;
      end[args.queries] = to;
      out[args.queries] = results + args.queries * result_floats() + 16;
      seen[args.queries++] = i;
    }
    if (args.queries == 0) return;
    attend(args);
    for (int j = 0; j < args.queries; ++j) done(seen[j], AttentionState{&max[j], &sum[j], out[j]});
  }

  // The first piece a query sees starts its running result; later ones are folded in, in order.
  void merge(const Machine& machine, bool is_first, const AttentionState& state,
             const AttentionState& part) const {
    if (!is_first) {
      machine.kernels->fold(state, part, spec_.head_dim);
      return;
    }
    *state.max = *part.max;
    *state.sum = *part.sum;
    std::memcpy(state.out, part.out, static_cast<size_t>(dim_) * sizeof(float));
  }

  void write_out(const Machine& machine, const Query& query, const AttentionState& state) const {
    const SlotMemory& out = machine.slots[static_cast<size_t>(spec_.out)];
    machine.kernels->finish(state, spec_.head_dim, out.row(query.row) + query.head * spec_.head_dim);
  }

  void run_whole(Machine& machine, const Step& step, int rank, int64_t items) const {
    float* const scratch = thread_scratch(rank);
    const KvType type = machine.kv->shape().type;
    float* const running =
        scratch + kMaxQueries * dim_ + kMaxQueries * kSegmentTokens + kMaxQueries * result_floats();
    while (true) {
      const int64_t index = machine.next_item.fetch_add(1, std::memory_order_relaxed);
      if (index >= items) return;
      const Item item = item_at(step, index);
      const int queries = item.rows * group_;
      const auto attend_all = [&](int32_t piece) {
        for (int first = 0; first < queries; first += kMaxQueries) {
          const int count = std::min(kMaxQueries, queries - first);
          const auto fold_in = [&](int i, const AttentionState& part) {
            const bool is_first = first_piece(type, query_of(item, i).position) == piece;
            merge(machine, is_first, state_at(running + i * result_floats()), part);
          };
          attend_piece(machine, item, piece, piece + 1, first, count, scratch, fold_in);
        }
      };
      for (int32_t segment = first_segment(item); segment < segments_end(type, item); ++segment)
        attend_all(segment);
      if (type == KvType::kInt8) attend_all(own_piece());
      for (int i = 0; i < queries; ++i) {
        write_out(machine, query_of(item, i), state_at(running + i * result_floats()));
      }
    }
  }

  // One work unit is one piece of one item; the results of all meet in the shared scratch, where they
  // are folded in the same order as in run_whole.
  void run_split(Machine& machine, const Step& step, int rank, int64_t items) const {
    const KvType type = machine.kv->shape().type;
    float* const scratch = thread_scratch(rank);
    float* const shared = scratch_ + machine.pool->size() * thread_floats();
    const auto shared_state = [&](const Query& query, int32_t piece) {
      const int64_t place = (query.row * spec_.num_heads + query.head) * max_pieces() + piece;
      return state_at(shared + place * result_floats());
    };
    while (true) {
      const int64_t unit = machine.next_item.fetch_add(1, std::memory_order_relaxed);
      if (unit >= items * max_pieces()) break;
      const Item item = item_at(step, unit / max_pieces());
      const int32_t piece = static_cast<int32_t>(unit % max_pieces());
      const bool is_segment = piece >= first_segment(item) && piece < segments_end(type, item);
      if (piece == own_piece() ? type != KvType::kInt8 : !is_segment) continue;
      const int queries = item.rows * group_;
      for (int first = 0; first < queries; first += kMaxQueries) {
        const int count = std::min(kMaxQueries, queries - first);
        const auto put = [&](int i, const AttentionState& part) {
          merge(machine, true, shared_state(query_of(item, i), piece), part);
        };
        attend_piece(machine, item, piece, piece + machine.pool->size(), first, count, scratch, put);
      }
    }
    machine.pool->barrier();
    for (int64_t index = 0; index < items; ++index) {
      const Item item = item_at(step, index);
      for (int i = rank; i < item.rows * group_; i += machine.pool->size()) {
        const Query query = query_of(item, i);
        const int32_t first = first_piece(type, query.position);
        const AttentionState state = shared_state(query, first);
        const int32_t segments = (stored_end(type, query.position) + kSegmentTokens - 1) / kSegmentTokens;
        for (int32_t piece = first + 1; piece < segments; ++piece) {
          merge(machine, false, state, shared_state(query, piece));
        }
        if (type == KvType::kInt8 && first != own_piece())
          merge(machine, false, state, shared_state(query, own_piece()));
        write_out(machine, query, state);
      }
    }
  }

  AttentionSpec spec_;
  int group_;
  int dim_;
  float* scratch_ = nullptr;
  std::optional<ChosenAttention> chosen_;
};

}  // namespace

std::unique_ptr<Op> make_attention(const AttentionSpec& spec, KvType type) {
  return std::make_unique<AttentionOp>(spec, type);
}

}  // namespace ellm
