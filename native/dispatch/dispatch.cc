#include "dispatch/dispatch.h"

#include <array>
#include <cstring>

#include "base/error.h"

namespace ellm {

// dispatch/registry.inc is written by CMake from the files in kernels/: one ELLM_FORMAT(name) per
// weight format, one ELLM_LINEAR(name, isa) per kernel file, one ELLM_TABLE(isa) per kernel table.
#define ELLM_FORMAT(name) extern const WeightFormat kFormat_##name;
#define ELLM_LINEAR(name, isa) extern const LinearKernels kLinear_##name##_##isa;
#define ELLM_TABLE(isa) extern const KernelTable kKernels_##isa;
#include "dispatch/registry.inc"
#undef ELLM_FORMAT
#undef ELLM_LINEAR
#undef ELLM_TABLE

namespace {

constexpr Isa scalar = Isa::kScalar;
[[maybe_unused]] constexpr Isa avx2 = Isa::kAvx2;
[[maybe_unused]] constexpr Isa avx512 = Isa::kAvx512;

struct LinearEntry {
  const WeightFormat* format;
  Isa isa;
  const LinearKernels* kernels;
};

struct TableEntry {
  Isa isa;
  const KernelTable* table;
};

#define ELLM_FORMAT(name) &kFormat_##name,
#define ELLM_LINEAR(name, isa)
#define ELLM_TABLE(isa)
constexpr const WeightFormat* kFormats[] = {
#include "dispatch/registry.inc"
};
#undef ELLM_FORMAT
#undef ELLM_LINEAR
#define ELLM_FORMAT(name)
#define ELLM_LINEAR(name, isa) LinearEntry{&kFormat_##name, isa, &kLinear_##name##_##isa},
const LinearEntry kLinears[] = {
#include "dispatch/registry.inc"
};
#undef ELLM_LINEAR
#undef ELLM_TABLE
#define ELLM_LINEAR(name, isa)
#define ELLM_TABLE(isa) TableEntry{isa, &kKernels_##isa},
const TableEntry kTables[] = {
#include "dispatch/registry.inc"
};
#undef ELLM_FORMAT
#undef ELLM_LINEAR
#undef ELLM_TABLE

bool cpu_has(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kAvx2: return has_avx2;
    case Isa::kAvx512:
      return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni");
  }
  return false;
#else
  return isa == Isa::kScalar;
#endif
}

// The entry with the highest ISA not above `isa`; entries without a scalar fallback do not exist.
template <class Entry, class Matches>
const Entry* highest(const Entry* begin, const Entry* end, Isa isa, Matches matches) {
  const Entry* best = nullptr;
  for (const Entry* entry = begin; entry != end; ++entry) {
    if (!matches(*entry) || entry->isa > isa) continue;
    if (best == nullptr || entry->isa > best->isa) best = entry;
  }
  return best;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "unknown";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    for (const TableEntry& entry : kTables) {
      if (entry.isa == isa && cpu_has(isa)) found.push_back(isa);
    }
  }
  return found;
}

Isa choose_isa(const std::string& name) {
  const std::vector<Isa> supported = supported_isas();
  if (name == "auto") return supported.back();
  std::string known;
  for (const Isa isa : supported) {
    if (name == isa_name(isa)) return isa;
    known += known.empty() ? isa_name(isa) : std::string(", ") + isa_name(isa);
  }
  throw Error(ErrorKind::kConfig, "cannot use the instruction set", "", std::nullopt, name,
              "auto or one this CPU supports: " + known);
}

const KernelTable& kernels_for(Isa isa) {
  return *highest(std::begin(kTables), std::end(kTables), isa, [](const TableEntry&) { return true; })->table;
}

std::span<const WeightFormat* const> weight_formats() { return kFormats; }

const WeightFormat& weight_format(const std::string& name) {
  std::string known;
  for (const WeightFormat* format : kFormats) {
    if (name == format->name) return *format;
    known += known.empty() ? format->name : std::string(", ") + format->name;
  }
  throw Error(ErrorKind::kUnsupported, "weight format", "", std::nullopt, name, "one of " + known);
}

const LinearKernels& linear_for(const WeightFormat& format, Isa isa) {
  const auto same = [&](const LinearEntry& entry) { return entry.format == &format; };
  return *highest(std::begin(kLinears), std::end(kLinears), isa, same)->kernels;
}

}  // namespace ellm
