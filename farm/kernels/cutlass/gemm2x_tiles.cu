// A GEMM from CUTLASS 2.x templates as a bare cubin: D[m,n] = alpha * A[m,k] * B[k,n] + beta * C, with C and D row-major.
//
// The kernel takes one structure by value, CUTLASS's `Params`, which only its own C++ can fill. `gemm_pack` does that on the
// device, so that the host needs no C++: it writes a `Params` for each operand set, and how to launch them. What the
// compiler already knows of a launch is in `gemm_facts`, which can be read from the cubin without a card.
//
// Definitions:
//   AB, CD, ACC                   C++ types of A and B, of C and D, and of accumulator, alpha and beta
//   A_TRANSPOSED, B_TRANSPOSED    1 where A is stored [k,m], and where B is stored [n,k]
//   TILE_M, TILE_N, TILE_K        what a block computes
//   WARP_M, WARP_N                what a warp of it computes; its K is TILE_K
//   STAGES, SWIZZLE               tiles in flight; neighbouring tiles that are launched together
//   ALIGN_A, ALIGN_B, ALIGN_C     elements loaded or stored at once
//   ARCH                          compute capability, 90 for 9.0
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/kernel/default_gemm.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"
#include "cutlass/layout/matrix.h"

using cutlass::gemm::GemmCoord;
using cutlass::gemm::GemmShape;

constexpr bool TURING = ARCH < 80;

static_assert(ARCH >= 75, "kernels are built for compute capability 7.5 and later");
static_assert(!TURING || STAGES == 2, "more than 2 stages need compute capability 8.0");

// How a type is multiplied: the class of operation, the shape of one instruction, and the oldest card that has it. Cards
// after 8.0 run the instructions of 8.0; those of 9.0 have a larger one for doubles.
template <typename Element>
struct Multiplier;

template <>
struct Multiplier<float> {
  using Class = cutlass::arch::OpClassSimt;
  using Instruction = GemmShape<1, 1, 1>;
  using Arch = typename cutlass::platform::conditional<(STAGES > 2), cutlass::arch::Sm80, cutlass::arch::Sm50>::type;
  static constexpr int since = 75;
};

template <int Since, typename Instruction_, typename Arch_>
struct TensorCore {
  using Class = cutlass::arch::OpClassTensorOp;
  using Instruction = Instruction_;
  using Arch = Arch_;
  static constexpr int since = Since;
};

using Generation = typename cutlass::platform::conditional<TURING, cutlass::arch::Sm75, cutlass::arch::Sm80>::type;

template <bool First, typename A, typename B>
using Either = typename cutlass::platform::conditional<First, A, B>::type;

template <>
struct Multiplier<cutlass::half_t> : TensorCore<75, GemmShape<16, 8, TURING ? 8 : 16>, Generation> {};
template <>
struct Multiplier<cutlass::bfloat16_t> : TensorCore<80, GemmShape<16, 8, 16>, Generation> {};
template <>
struct Multiplier<cutlass::tfloat32_t> : TensorCore<80, GemmShape<16, 8, 8>, Generation> {};
template <>
struct Multiplier<int8_t> : TensorCore<75, Either<TURING, GemmShape<8, 8, 16>, GemmShape<16, 8, 32>>, Generation> {};
template <>
struct Multiplier<double> : TensorCore<80, GemmShape<ARCH >= 90 ? 16 : 8, 8, 4>,
                                       Either<(ARCH >= 90), cutlass::arch::Sm90, cutlass::arch::Sm80>> {};

using Use = Multiplier<AB>;
static_assert(ARCH >= Use::since, "the type needs tensor cores of compute capability 8.0");

// CUTLASS has 8-bit integers with saturation only: a sum beyond 32 bits stays at the largest number, and does not wrap.
using Operator = Either<cutlass::platform::is_same<AB, int8_t>::value, cutlass::arch::OpMultiplyAddSaturate,
                        cutlass::arch::OpMultiplyAdd>;

using Rows = cutlass::layout::RowMajor;
using Columns = cutlass::layout::ColumnMajor;
using LayoutA = Either<A_TRANSPOSED, Columns, Rows>;
using LayoutB = Either<B_TRANSPOSED, Columns, Rows>;

using Tile = GemmShape<TILE_M, TILE_N, TILE_K>;
using Warp = GemmShape<WARP_M, WARP_N, TILE_K>;
static_assert(TILE_M % WARP_M == 0 && TILE_N % WARP_N == 0, "a tile is a whole number of warp tiles");
static_assert((TILE_M / WARP_M) * (TILE_N / WARP_N) <= 32, "a block has at most 32 warps");

