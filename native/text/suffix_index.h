// The longest end of a growing text that also occurs earlier, and what followed it there: a draft for
// speculative decoding.
//
// A suffix automaton. A state stands for the substrings that end at the same places; the longest has
// `length` tokens, and `link` is the state of its longest suffix that ends at more places. So the state that
// the whole text links to is the match.
//
// Source: A. Blumer et al., "The smallest automaton recognizing the subwords of a text", Theoretical
// Computer Science 40 (1985): built token by token, n tokens give at most 2n - 1 states and 3n - 4
// transitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ellm {

// Not safe for several threads at once. After a bad_alloc it is only good for being destroyed.
class SuffixIndex {
 public:
  struct Match {
    int64_t length;  // tokens; 0: the last token is new
    int64_t next;    // position after the earlier occurrence, which may overlap the end of the text
  };

  SuffixIndex();
  SuffixIndex(const SuffixIndex&) = delete;
  SuffixIndex& operator=(const SuffixIndex&) = delete;

  // Appends in amortised constant time per token. Throws kCapacity beyond 2^31 - 2 tokens in all.
  void extend(std::span<const int32_t> tokens);

  int64_t size() const { return size_; }

  // The longest suffix that ends at an earlier position too, and its latest such end: an older one where the
  // latest was also the end of more than 32 longer repeats, the shorter of which are not kept up to date.
  Match match() const { return match_; }

  // Memory held.
  int64_t bytes() const;

 private:
  // Most states have one transition, which lies here; the others are in the table, chained by their tokens
  // from the newest down to `first_token`, so that a copied state finds its own.
  struct State {
    int32_t length;
    uint32_t link;
    int32_t end;  // position after the latest known occurrence
    int32_t first_token;
    uint32_t first_target;  // kRoot: no transitions
    int32_t newest_token;   // first_token: no others
  };
  struct Slot {
    uint32_t state;
    int32_t token;
    uint32_t target;  // kRoot: empty
    int32_t older_token;
  };

  static constexpr uint32_t kRoot = 0;  // no transition leads there
  static constexpr uint32_t kAboveRoot = UINT32_MAX;

  void append(int32_t token);
  uint32_t add_state(const State& state);
  uint32_t split(uint32_t parent, int32_t token, uint32_t target);
  void mark_ends(uint32_t state);

  // The state that `token` leads to, or kRoot.
  uint32_t target_of(uint32_t state, int32_t token) const;
  void add_transition(uint32_t state, int32_t token, uint32_t target);
  void change_transition(uint32_t state, int32_t token, uint32_t target);
  // Where the transition is or would be put.
  size_t slot_of(uint32_t state, int32_t token) const;
  void put(const Slot& slot);
  void grow();

  std::vector<State> states_;
  std::vector<Slot> slots_;  // open addressing; a power of two
  int slot_bits_;
  size_t used_slots_ = 0;
  uint32_t whole_ = kRoot;  // the state of the whole text
  int32_t size_ = 0;
  Match match_ = {0, 0};
};

}  // namespace ellm
