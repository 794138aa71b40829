// Chooses kernels once: the highest ISA this CPU has, or the one named by the caller.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/weight_format.h"

namespace ellm {

enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

const char* isa_name(Isa isa);

// ISAs that are compiled in and that this CPU and operating system support, lowest first.
std::vector<Isa> supported_isas();

// The ISA called `name`, or the highest for "auto". Throws kConfig naming what is supported.
Isa choose_isa(const std::string& name);

// The table of the highest ISA not above `isa` that has one; scalar always has.
const KernelTable& kernels_for(Isa isa);

std::span<const WeightFormat* const> weight_formats();

// Throws kUnsupported naming the known formats.
const WeightFormat& weight_format(const std::string& name);

const LinearKernels& linear_for(const WeightFormat& format, Isa isa);

}  // namespace ellm
