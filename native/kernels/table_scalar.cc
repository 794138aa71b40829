// The kernels of kernel_table.h on scalar lanes.
#include "kernels/vector/scalar.h"

#include "kernels/attention/int8_dots_scalar.h"
#include "kernels/attention/int8_kernel.h"
#include "kernels/attention/kernel.h"
#include "kernels/attention/mass_kernel.h"
#include "kernels/gated/kernel.h"
#include "kernels/kernel_table.h"
#include "kernels/quantize/kernel.h"
#include "kernels/rms_norm/kernel.h"
#include "kernels/rope/kernel.h"

namespace ellm {

extern const KernelTable kKernels_scalar = {
    quantize_groups,
    rms_norm,
    rope_halves,
    rope_interleaved,
    gated<silu>,
    gated<gelu>,
    append_token<StoredF32>,
    append_token<StoredF16>,
    attend<StoredF32>,
    attend<StoredF16>,
    store_int8,
    attend_int8,
    score_int8,
    weigh_int8,
    block_masses,
    scan_int8,
    mean_int8,
    normalise_masses,
    weigh_means,
    fold,
    finish,
};

}  // namespace ellm
