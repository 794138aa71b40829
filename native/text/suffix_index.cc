#include "text/suffix_index.h"

#include "base/error.h"

namespace ellm {
namespace {

constexpr int64_t kMaxTokens = INT32_MAX - 1;  // positions are int32, and 2n states fit uint32
constexpr int kFirstSlotBits = 6;

// States whose latest end is set per token. In a run of equal tokens every suffix repeats, and to set all of
// them would cost the square of the text. On 131,072 words of Python's library there are 3.4 of them on
// average and more than 32 at 0.2 % of the tokens; 1 match in 10,000 then gives an older end.
constexpr int kMaxEnds = 32;

// The finaliser of MurmurHash3: states and tokens are both consecutive numbers, which a single multiplication
// sends to the same places. Source: https://github.com/aappleby/smhasher, fmix64.
uint64_t mix(uint64_t key) {
  key = (key ^ (key >> 33)) * 0xff51afd7ed558ccdU;
  key = (key ^ (key >> 33)) * 0xc4ceb9fe1a85ec53U;
  return key ^ (key >> 33);
}

}  // namespace

SuffixIndex::SuffixIndex()
    : states_({{0, kAboveRoot, 0, 0, kRoot, 0}}),
      slots_(size_t{1} << kFirstSlotBits),
      slot_bits_(kFirstSlotBits) {}

void SuffixIndex::extend(std::span<const int32_t> tokens) {
  const auto free_tokens = static_cast<uint64_t>(kMaxTokens - size_);
  if (tokens.size() > free_tokens) {
    throw Error::capacity("tokens of a suffix index", tokens.size(), free_tokens);
  }
  for (const int32_t token : tokens) append(token);
}

int64_t SuffixIndex::bytes() const {
  return static_cast<int64_t>(sizeof(*this) + states_.capacity() * sizeof(State) +
                              slots_.capacity() * sizeof(Slot));
}

void SuffixIndex::append(int32_t token) {
  ++size_;
  const uint32_t added = add_state({size_, kRoot, size_, 0, kRoot, 0});
  uint32_t state = whole_;
  uint32_t target = kRoot;
  while (state != kAboveRoot && (target = target_of(state, token)) == kRoot) {
    add_transition(state, token, added);
    state = states_[state].link;
  }
  if (state != kAboveRoot) {
    const bool fits = states_[target].length == states_[state].length + 1;
    states_[added].link = fits ? target : split(state, token, target);
  }
  whole_ = added;
  const uint32_t longest = states_[added].link;
  match_ = {states_[longest].length, longest == kRoot ? size_ : states_[longest].end};
  mark_ends(longest);
}

uint32_t SuffixIndex::add_state(const State& state) {
  states_.push_back(state);
  return static_cast<uint32_t>(states_.size() - 1);
}

// The suffixes of `target` that end with `token` after `parent` now end at a place of their own: they move to
// a copy. Transitions never leave the automaton, so all copies together are within its bound of 3n; the root,
// which has as many as there are different tokens, is nobody's target.
uint32_t SuffixIndex::split(uint32_t parent, int32_t token, uint32_t target) {
  const State old = states_[target];
  const uint32_t copy = add_state(old);
  states_[copy].length = states_[parent].length + 1;
  states_[copy].newest_token = old.first_token;
  for (int32_t next = old.newest_token; next != old.first_token;) {
    const Slot slot = slots_[slot_of(target, next)];
    add_transition(copy, slot.token, slot.target);
    next = slot.older_token;
  }
  states_[target].link = copy;
  for (uint32_t state = parent; state != kAboveRoot && target_of(state, token) == target;
       state = states_[state].link) {
    change_transition(state, token, copy);
  }
  return copy;
}

void SuffixIndex::mark_ends(uint32_t state) {
  for (int i = 0; i < kMaxEnds && state != kRoot; ++i) {
    states_[state].end = size_;
    state = states_[state].link;
  }
}

uint32_t SuffixIndex::target_of(uint32_t state, int32_t token) const {
  const State& from = states_[state];
  if (from.first_target == kRoot || from.first_token == token) return from.first_target;
  if (from.newest_token == from.first_token) return kRoot;
  return slots_[slot_of(state, token)].target;
}

void SuffixIndex::add_transition(uint32_t state, int32_t token, uint32_t target) {
  State& from = states_[state];
  if (from.first_target == kRoot) {
    from.first_token = from.newest_token = token;
    from.first_target = target;
    return;
  }
  put({state, token, target, from.newest_token});
  from.newest_token = token;
}

void SuffixIndex::change_transition(uint32_t state, int32_t token, uint32_t target) {
  State& from = states_[state];
  (from.first_token == token ? from.first_target : slots_[slot_of(state, token)].target) = target;
}

size_t SuffixIndex::slot_of(uint32_t state, int32_t token) const {
  const uint64_t key = uint64_t{state} << 32 | static_cast<uint32_t>(token);
  size_t place = mix(key) >> (64 - slot_bits_);
  while (slots_[place].target != kRoot && (slots_[place].state != state || slots_[place].token != token)) {
    place = (place + 1) & (slots_.size() - 1);
  }
  return place;
}

void SuffixIndex::put(const Slot& slot) {
  if (used_slots_ * 5 >= slots_.size() * 3) grow();
  slots_[slot_of(slot.state, slot.token)] = slot;
  ++used_slots_;
}

void SuffixIndex::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  ++slot_bits_;
  for (const Slot& slot : old) {
    if (slot.target != kRoot) slots_[slot_of(slot.state, slot.token)] = slot;
  }
}

}  // namespace ellm
