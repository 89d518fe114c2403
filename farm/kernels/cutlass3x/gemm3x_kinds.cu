// Kernels beyond one plain product: D = activation(alpha * (factors of A) A * (factors of B) B + beta * C + bias), for each product of a
// batch, or for groups of rows of A, each with a matrix B of its own.
//
// Definitions, besides those above:
//   BIAS              1 to add a bias of n elements of D's type to each row
//   ACTIVATION        what is applied then, a class of cutlass::epilogue::thread
//   SCALE             scale factors: 0 none, 1 one for A and one for B, 2 one for each row of A and column of B, 3 one for each block
//   LINES_A, LINES_B  rows of A and columns of B that share the factor of a block, which has 128 elements along k
//   GROUPED           1 where A has groups of rows
//   NARROW            1 where B has fewer bits than A, and becomes A's type on its way through registers; 2 where it has factors of
//                     A's type besides, each for some elements along k of a column. SWAP is 1 then
#include "cutlass/detail/blockwise_scale_layout.hpp"
#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/gemm/group_array_problem_shape.hpp"

constexpr bool PERSISTENT = SCHEDULE != 0;
constexpr bool SCALED_BLOCKS = SCALE == 3;
using Persistent = Either<
    GROUPED,
    Either<SCALED_BLOCKS,
           Either<SCHEDULE == 1, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpongFP8Blockwise,
                  cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperativeFP8Blockwise>,
           Either<SCHEDULE == 1, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong,
                  cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>>,
    Either<SCALED_BLOCKS,
           Either<SCHEDULE == 1, cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8Blockwise,
                  cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8Blockwise>,
           Either<SCHEDULE == 1, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                  cutlass::gemm::KernelTmaWarpSpecializedCooperative>>>;
using Mainloop = Either<PERSISTENT, Persistent, cutlass::gemm::KernelTmaWarpSpecialized>;
using Storing = Either<
    GROUPED,
    Either<EPILOGUE == 0, cutlass::epilogue::PtrArrayNoSmemWarpSpecialized,
           Either<SCHEDULE == 2, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative,
                  cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>>,
    Either<EPILOGUE == 0, cutlass::epilogue::NoSmemWarpSpecialized,
           Either<SCHEDULE == 2, cutlass::epilogue::TmaWarpSpecializedCooperative, cutlass::epilogue::TmaWarpSpecialized>>>;
using Scheduler = Either<!PERSISTENT || GROUPED, void,
                         Either<STREAM_K, cutlass::gemm::StreamKScheduler, cutlass::gemm::PersistentScheduler>>;

// What follows the product, as a tree of operations on the accumulators. A plain product has the usual one.
namespace evt = cutlass::epilogue::fusion;
constexpr auto NEAREST = cutlass::FloatRoundStyle::round_to_nearest;
constexpr bool PLAIN = !BIAS && (SCALE == 0 || SCALED_BLOCKS) &&
                       cute::is_same_v<ACTIVATION<ACC>, cutlass::epilogue::thread::Identity<ACC>>;

// A vector along m or n of each product. It runs along rows or columns of the kernel's product.
template <typename T>
using OfKernelRows = evt::Sm90ColBroadcast<0, Tile, T, ACC, cute::Stride<cute::_1, cute::_0, std::int64_t>, 1>;
template <typename T>
using OfKernelColumns = evt::Sm90RowBroadcast<0, Tile, T, ACC, cute::Stride<cute::_0, cute::_1, std::int64_t>, 1>;
using Bias = Either<SWAP, OfKernelRows<CD>, OfKernelColumns<CD>>;
using FactorsOfColumns = Either<SWAP, OfKernelRows<ACC>, OfKernelColumns<ACC>>;
// The rows of groups do not begin at equal distances, so that each group has a pointer to its factors.
using RowFactor = Either<GROUPED, ACC *, ACC>;
using FactorsOfRows = Either<SWAP, OfKernelColumns<RowFactor>, OfKernelRows<RowFactor>>;

using OneForEach = cute::Stride<cute::_0, cute::_0, std::int64_t>;  // product of a batch, or group
using Beta = evt::Sm90ScalarBroadcast<ACC, OneForEach>;
// The product of what stands for all elements: alpha, and the factors of B and A.
using Alpha = evt::Sm90ScalarBroadcast<ACC, OneForEach, SCALE == 1 ? 3 : 1, cutlass::multiplies>;
template <template <typename> class Operation, typename Result, typename... Of>
using Tree = evt::Sm90EVT<evt::Sm90Compute<Operation, Result, ACC, NEAREST>, Of...>;
using ScaledColumns = Tree<cutlass::multiplies, ACC, FactorsOfColumns, evt::Sm90AccFetch>;
using ScaledRows = Tree<cutlass::multiplies, ACC, FactorsOfRows, ScaledColumns>;
using Product = Tree<cutlass::multiplies, ACC, Alpha, Either<SCALE == 2, ScaledRows, evt::Sm90AccFetch>>;
using Sum = Tree<cutlass::homogeneous_multiply_add, ACC, Beta, evt::Sm90SrcFetch<CD>, Product>;
using WithBias = Either<BIAS, Tree<cutlass::plus, ACC, Sum, Bias>, Sum>;
using Fused = Tree<ACTIVATION, CD, WithBias>;

constexpr int TMA_BYTES = 16;
using PlaceOfD = Either<GROUPED, LayoutD *, LayoutD>;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, ACC,
    ACC, CD, PlaceOfD, TMA_BYTES / sizeof(CD), CD, PlaceOfD, TMA_BYTES / sizeof(CD), Storing,
    Either<PLAIN, evt::LinearCombination<CD, ACC, CD, ACC>, Fused>>::CollectiveOp;

// Scale factors of blocks. Those of single lines lie with lines contiguous, others with blocks along k contiguous.
constexpr int BLOCK_K = 128, LINES_LEFT = SWAP ? LINES_B : LINES_A, LINES_RIGHT = SWAP ? LINES_A : LINES_B;
using Blocks = cutlass::detail::Sm90BlockwiseScaleConfig<
    LINES_LEFT, LINES_RIGHT, BLOCK_K, LINES_LEFT == 1 ? cute::GMMA::Major::MN : cute::GMMA::Major::K,
    LINES_RIGHT == 1 ? cute::GMMA::Major::MN : cute::GMMA::Major::K>;
template <typename Layout, typename Factors>
using Place = Either<GROUPED, Either<SCALED_BLOCKS, cute::tuple<Layout *, Factors *>, Layout *>,
                     Either<SCALED_BLOCKS, cute::tuple<Layout, Factors>, Layout>>;

// Only the left operand goes through registers.
static_assert(NARROW == 0 || SWAP == 1, "a narrow B is the left operand");
using LeftAndFactors = Either<NARROW == 0, Left, Either<NARROW == 1, cute::tuple<Left>, cute::tuple<Left, TYPE_A>>>;
constexpr int AT_ONCE_LEFT = TMA_BYTES * 8 / cutlass::sizeof_bits<Left>::value;
constexpr int AT_ONCE_RIGHT = TMA_BYTES * 8 / cutlass::sizeof_bits<Right>::value;

// A kernel that is not persistent stores when it has multiplied, in the same shared memory.
constexpr int STORING_BYTES = PERSISTENT ? int(sizeof(typename Epilogue::SharedStorage)) : 0;
// The builder for operands that go through registers passes on `bytes` of any count, also of one that is given.
struct Given : cutlass::gemm::collective::StageCount<STAGES> {
  static constexpr int bytes = STAGES;
};
// The builder for blocks with factors counts stages only by what is left for them: half a stage more than those that are given.
constexpr int STAGE_BYTES =
    cutlass::round_up((TILE_M + TILE_N) * TILE_K * int(sizeof(Left)) + (TILE_M / LINES_A + TILE_N / LINES_B) * 4, 128) + 16;
using Counted = Either<STAGES == 0, cutlass::gemm::collective::StageCountAutoCarveout<STORING_BYTES>,
                       cutlass::gemm::collective::StageCountAutoCarveout<cutlass::gemm::collective::detail::sm90_smem_capacity_bytes -
                                                                         STAGES * STAGE_BYTES - STAGE_BYTES / 2>>;
using Stages = Either<STAGES == 0 || SCALED_BLOCKS, Counted, Given>;
using Multiplying = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, LeftAndFactors, Place<LayoutLeft, typename Blocks::LayoutSFA>,
    AT_ONCE_LEFT, Right, Place<LayoutRight, typename Blocks::LayoutSFB>, AT_ONCE_RIGHT, ACC, Tile, Cluster, Stages,
    Mainloop>::CollectiveOp;

// The host does not know the extents of groups, and counts no tiles of them.
namespace cute {
template <std::size_t, typename Shape>
int get(cutlass::gemm::GroupProblemShape<Shape> const &) {
  return 0;
}
}  // namespace cute

using Shape = Either<GROUPED, cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>, cute::Shape<int, int, int, int>>;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape, Multiplying, Epilogue, Scheduler>;
static_assert(Kernel::SharedStorageSize <= 232448, "the stages do not fit into shared memory");

// A problem, where its operands lie, and the card that it runs on.
struct Problem {
  std::int64_t m, n, k;
  void *a, *b, *c, *d;  // c is not read where beta is 0
  double alpha, beta;
  std::int64_t swizzle;          // the most neighbouring columns of tiles that are computed together
  std::int64_t raster;           // tiles are computed 0 in the order that CUTLASS chooses, 1 along m, 2 along n
  std::int64_t multiprocessors;  // as `gemm_open` says
  std::int64_t clusters;         // as `gemm_open` says
  std::int64_t batch;
  void *factors_a, *factors_b, *bias;  // those that there are
  std::int64_t groups;
  void *table;  // of groups, on the card: see `Column`
  std::int64_t factor_k;  // elements along k that share a factor of a narrow B; 0 is all
};

// What launches one operand set, in memory of the caller.
struct alignas(128) Packed {
  typename Kernel::Params params;
  typename Kernel::Arguments arguments;
  void *workspace;
  dim3 grid;
};

struct Resources {
  std::int64_t blocks_per_multiprocessor, blocks, tiles, stages;
};

// The table of groups has a column of 8 bytes for each group, one column after another. Then come the extents of the kernel's
// product of each group, as three numbers of 4 bytes.
enum Column { AT_A, AT_B, AT_C, AT_D, AT_FACTORS_A, AT_FACTORS_B, LEADING_A, LEADING_B, LEADING_D, EXTENTS };

// What is known before there is a problem: bytes of Packed, bytes of dynamic shared memory, threads of a block. It can be
// read from the library without loading it.
ENTRY int const gemm_facts[];
int const gemm_facts[] = {sizeof(Packed), Kernel::SharedStorageSize, Kernel::MaxThreadsPerBlock};

extern "C" __global__ void __launch_bounds__(Kernel::MaxThreadsPerBlock, Kernel::MinBlocksPerMultiprocessor)
    gemm(CUTLASS_GRID_CONSTANT typename Kernel::Params const params) {
  extern __shared__ char shared[];
  Kernel kernel;
  kernel(params, shared);
}

// Every entry returns 0, the number of a CUDA error, or the negative number of a cutlass::Status.
static int said(cutlass::Status status) { return -int(status); }

// Errors that stay are returned by the call that follows; others are this call's alone.
static int said(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return int(error);
}

template <typename Stride>
static Stride stride(std::int64_t leading, std::int64_t next) {
  Stride made{};
  if constexpr (cute::is_static_v<cute::tuple_element_t<0, Stride>>) {
    cute::get<1>(made) = leading;
  } else {
    cute::get<0>(made) = leading;
  }
  cute::get<2>(made) = next;
  return made;
}

// Factors of blocks, `lines` of which are in a block, as they lie: see `workers.measure.stored`.
template <typename Layout, int lines>
static Layout factors(std::int64_t extent, Problem const &p) {
  int const across = int(cutlass::ceil_div(extent, std::int64_t(lines)));
  int const along = int(cutlass::ceil_div(p.k, std::int64_t(BLOCK_K)));
  auto const shape = cute::make_shape(cute::make_shape(cute::Int<lines>{}, across), cute::make_shape(cute::Int<BLOCK_K>{}, along),
                                      int(p.batch));
  if constexpr (lines == 1) {
    return Layout(shape, cute::make_stride(cute::make_stride(cute::_0{}, cute::_1{}), cute::make_stride(cute::_0{}, across),
                                           across * along));
  } else {
    int const room = cutlass::round_up(along, 4);
    return Layout(shape, cute::make_stride(cute::make_stride(cute::_0{}, room), cute::make_stride(cute::_0{}, cute::_1{}),
                                           across * room));
  }
}

template <typename Vector>
static auto vector(void *at, std::int64_t next) {
  typename Vector::Arguments made{};
  auto const place = [&](auto &pointer) { pointer = reinterpret_cast<cute::remove_reference_t<decltype(pointer)>>(at); };
  if constexpr (cute::is_same_v<typename Vector::StrideMNL, cute::Stride<cute::_1, cute::_0, std::int64_t>>) {
    place(made.ptr_col);
    cute::get<2>(made.dCol) = next;
  } else {
    place(made.ptr_row);
    cute::get<2>(made.dRow) = next;
  }
  return made;
}

template <typename Arguments>
static Arguments fused_of(Problem const &p, void **table) {
  std::int64_t const several = p.batch > 1 || GROUPED;
  Arguments made{};
  auto &sum = [&]() -> auto & {
    if constexpr (BIAS) {
      made.op_0.op_1 = vector<Bias>(p.bias, several ? p.n : 0);
      return made.op_0.op_0;
    } else {
      return made.op_0;
    }
  }();
  sum.op_0.scalars[0] = ACC(p.beta);
  auto &alpha = sum.op_2.op_0;
  if constexpr (SCALE == 1) {
    alpha.scalar_ptrs[0] = reinterpret_cast<ACC const *>(p.factors_b);
    alpha.scalar_ptrs[1] = reinterpret_cast<ACC const *>(p.factors_a);
    cute::get<2>(alpha.dScalar[0]) = several;
    cute::get<2>(alpha.dScalar[1]) = p.batch > 1;
    alpha.scalars[2] = ACC(p.alpha);
  } else {
    alpha.scalars[0] = ACC(p.alpha);
  }
  if constexpr (SCALE == 2) {
    void *const rows = GROUPED ? table + AT_FACTORS_A * p.groups : p.factors_a;
    sum.op_2.op_1.op_0 = vector<FactorsOfRows>(rows, p.batch > 1 ? p.m : 0);
    sum.op_2.op_1.op_1.op_0 = vector<FactorsOfColumns>(p.factors_b, several ? p.n : 0);
  }
  return made;
}

template <typename Arguments>
static Arguments filled(Problem const &p) {
  Arguments made{};
  auto &mainloop = made.mainloop;
  auto &epilogue = made.epilogue;
  auto const table = reinterpret_cast<void **>(p.table);
  auto const column = [&](Column which) { return table + which * p.groups; };
  auto const place = [](auto &pointer, void *at) { pointer = reinterpret_cast<cute::remove_reference_t<decltype(pointer)>>(at); };
  if constexpr (GROUPED) {
    made.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    made.problem_shape.num_groups = int(p.groups);
    place(made.problem_shape.problem_shapes, column(EXTENTS));
    place(mainloop.ptr_A, column(SWAP ? AT_B : AT_A));
    place(mainloop.ptr_B, column(SWAP ? AT_A : AT_B));
    place(mainloop.dA, column(SWAP ? LEADING_B : LEADING_A));
    place(mainloop.dB, column(SWAP ? LEADING_A : LEADING_B));
    place(epilogue.ptr_C, column(AT_C));
    place(epilogue.ptr_D, column(AT_D));
    place(epilogue.dC, column(LEADING_D));
    place(epilogue.dD, column(LEADING_D));
    static_assert(sizeof(*mainloop.dA) == 8 && sizeof(*mainloop.dB) == 8 && sizeof(*epilogue.dD) == 8, "strides are one number");
    if constexpr (SCALED_BLOCKS) {
      place(mainloop.ptr_SFA, column(SWAP ? AT_FACTORS_B : AT_FACTORS_A));
      place(mainloop.ptr_SFB, column(SWAP ? AT_FACTORS_A : AT_FACTORS_B));
    }
  } else {
    made.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    int const m = int(p.m), n = int(p.n), k = int(p.k), batch = int(p.batch);
    made.problem_shape = SWAP ? cute::make_shape(n, m, k, batch) : cute::make_shape(m, n, k, batch);
    auto const strides_a = A_TRANSPOSED ? p.m : p.k, strides_b = B_TRANSPOSED ? p.k : p.n;
    bool const several = p.batch > 1;
    auto const next_a = several ? p.m * p.k : 0, next_b = several ? p.k * p.n : 0, next_d = several ? p.m * p.n : 0;
    place(mainloop.ptr_A, SWAP ? p.b : p.a);
    place(mainloop.ptr_B, SWAP ? p.a : p.b);
    mainloop.dA = stride<cute::remove_reference_t<decltype(mainloop.dA)>>(SWAP ? strides_b : strides_a, SWAP ? next_b : next_a);
    mainloop.dB = stride<cute::remove_reference_t<decltype(mainloop.dB)>>(SWAP ? strides_a : strides_b, SWAP ? next_a : next_b);
    place(epilogue.ptr_C, p.c ? p.c : p.d);
    place(epilogue.ptr_D, p.d);
    epilogue.dC = stride<cute::remove_reference_t<decltype(epilogue.dC)>>(p.n, next_d);
    epilogue.dD = stride<cute::remove_reference_t<decltype(epilogue.dD)>>(p.n, next_d);
    if constexpr (SCALED_BLOCKS) {
      place(mainloop.ptr_SFA, SWAP ? p.factors_b : p.factors_a);
      place(mainloop.ptr_SFB, SWAP ? p.factors_a : p.factors_b);
      mainloop.layout_SFA = factors<typename Blocks::LayoutSFA, LINES_LEFT>(SWAP ? p.n : p.m, p);
      mainloop.layout_SFB = factors<typename Blocks::LayoutSFB, LINES_RIGHT>(SWAP ? p.m : p.n, p);
    }
  }
  if constexpr (NARROW == 2) {
    place(mainloop.ptr_S, p.factors_b);
    mainloop.group_size = int(p.factor_k ? p.factor_k : p.k);
    auto const along = cutlass::ceil_div(p.k, std::int64_t(mainloop.group_size));
    mainloop.dS = cute::make_stride(cute::_1{}, p.n, p.batch > 1 ? along * p.n : 0);
  }
  if constexpr (PLAIN) {
    epilogue.thread.alpha = ACC(p.alpha);
    epilogue.thread.beta = ACC(p.beta);
  } else {
    epilogue.thread = fused_of<cute::remove_reference_t<decltype(epilogue.thread)>>(p, table);
  }
  made.hw_info.sm_count = int(p.multiprocessors);
  made.hw_info.max_active_clusters = int(p.clusters);
  if constexpr (PERSISTENT) {
    using Order = cute::remove_cvref_t<decltype(made.scheduler.raster_order)>;
    made.scheduler.max_swizzle_size = int(p.swizzle);
    made.scheduler.raster_order = p.raster == 0                ? Order::Heuristic
                                  : (p.raster == 1) == !SWAP ? Order::AlongM
                                                               : Order::AlongN;
  }
  return made;
}

static typename Kernel::Arguments arguments_of(Problem const &p) { return filled<typename Kernel::Arguments>(p); }

