// Python door of the executor: record ops, then run steps.
#pragma once

#include <nanobind/nanobind.h>

namespace ellm {

void bind_executor(nanobind::module_& m);

}  // namespace ellm
