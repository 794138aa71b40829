// The compiled module `ellm._core`; only src/ellm/native.py imports it.
#include <nanobind/nanobind.h>

#include "bindings/bind_executor.h"
#include "bindings/bind_gguf.h"
#include "bindings/bind_kernels.h"
#include "bindings/bind_text.h"
#include "bindings/translate_error.h"

NB_MODULE(_core, m) {
  ellm::register_error_translation();
  ellm::bind_gguf(m);
  ellm::bind_kernels(m);
  ellm::bind_executor(m);
  ellm::bind_text(m);
}
