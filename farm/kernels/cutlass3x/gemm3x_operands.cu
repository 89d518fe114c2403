// A GEMM from CUTLASS 3.x's collective builders as a small shared library: D[m,n] = alpha * A[m,k] * B[k,n] + beta * C, with
// C and D row-major, on compute capability 9.0.
//
// The kernel takes CUTLASS's `Params` by value. They hold TMA descriptors, which the driver makes on the host, so that a bare
// cubin is not enough. Whoever calls gives the memory for them, and nothing is kept here: any number of problems live at once.
//
// Definitions:
//   TYPE_A, TYPE_B, CD, ACC       C++ types of A, of B, of C and D, and of accumulator, alpha and beta
//   A_TRANSPOSED, B_TRANSPOSED    1 where A is stored [k,m], and where B is stored [n,k]
//   SWAP                          1 to compute the transposed product, D' = B' A': instructions of 64 rows then lie along n
//   TILE_M, TILE_N, TILE_K        what a block computes
//   CLUSTER_M, CLUSTER_N          neighbouring blocks that share their tiles of B and of A
//   SCHEDULE                      0 warp-specialised, 1 pingpong, 2 cooperative
//   EPILOGUE                      0 stores from registers, 1 through shared memory by TMA
//   STAGES                        tiles in flight; 0 is as many as fit
//   STREAM_K                      1 to share a tile's steps of k among blocks
//   ARCH                          compute capability, 90 for 9.0
#include <cstdint>
#include <cstring>

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/collective/default_epilogue.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"

static_assert(ARCH == 90, "these kernels are for compute capability 9.0");
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
static_assert(ARCH == 0, "these kernels need all that sm_90a has");
#endif

#define ENTRY extern "C" __attribute__((visibility("default")))

template <bool First, typename A, typename B>
using Either = cute::conditional_t<First, A, B>;

using Rows = cutlass::layout::RowMajor;
using Columns = cutlass::layout::ColumnMajor;

// The kernel multiplies Left by Right. Where it computes the transposed product, Left is B' and Right is A'.
using Left = Either<SWAP, TYPE_B, TYPE_A>;
using Right = Either<SWAP, TYPE_A, TYPE_B>;
using LayoutLeft = Either<(SWAP ? !B_TRANSPOSED : A_TRANSPOSED), Columns, Rows>;
using LayoutRight = Either<(SWAP ? !A_TRANSPOSED : B_TRANSPOSED), Columns, Rows>;
using LayoutD = Either<SWAP, Columns, Rows>;

using Tile = Either<SWAP, cute::Shape<cute::Int<TILE_N>, cute::Int<TILE_M>, cute::Int<TILE_K>>,
                    cute::Shape<cute::Int<TILE_M>, cute::Int<TILE_N>, cute::Int<TILE_K>>>;
using Cluster = Either<SWAP, cute::Shape<cute::Int<CLUSTER_N>, cute::Int<CLUSTER_M>, cute::_1>,
                       cute::Shape<cute::Int<CLUSTER_M>, cute::Int<CLUSTER_N>, cute::_1>>;

