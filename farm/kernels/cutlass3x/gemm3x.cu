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

constexpr bool PERSISTENT = SCHEDULE != 0;
using Mainloop = Either<SCHEDULE == 0, cutlass::gemm::KernelTmaWarpSpecialized,
                        Either<SCHEDULE == 1, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                               cutlass::gemm::KernelTmaWarpSpecializedCooperative>>;
using Storing = Either<EPILOGUE == 0, cutlass::epilogue::NoSmemWarpSpecialized,
                       Either<SCHEDULE == 2, cutlass::epilogue::TmaWarpSpecializedCooperative,
                              cutlass::epilogue::TmaWarpSpecialized>>;
using Scheduler = Either<!PERSISTENT, void,
                         Either<STREAM_K, cutlass::gemm::StreamKScheduler, cutlass::gemm::PersistentScheduler>>;

constexpr int TMA_BYTES = 16;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, ACC,
    ACC, CD, LayoutD, TMA_BYTES / sizeof(CD), CD, LayoutD, TMA_BYTES / sizeof(CD), Storing>::CollectiveOp;

// A kernel that is not persistent stores when it has multiplied, in the same shared memory.
constexpr int STORING_BYTES = PERSISTENT ? int(sizeof(typename Epilogue::SharedStorage)) : 0;
// The builder for operands that go through registers passes on `bytes` of any count, also of one that is given.
struct Given : cutlass::gemm::collective::StageCount<STAGES> {
  static constexpr int bytes = STAGES;
};
using Stages = Either<STAGES == 0, cutlass::gemm::collective::StageCountAutoCarveout<STORING_BYTES>, Given>;
using Multiplying = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Left, LayoutLeft, TMA_BYTES / sizeof(Left), Right, LayoutRight,
    TMA_BYTES / sizeof(Right), ACC, Tile, Cluster, Stages, Mainloop>::CollectiveOp;

using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Multiplying, Epilogue, Scheduler>;
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
static Stride stride(std::int64_t leading) {
  Stride made{};
  if constexpr (cute::is_static_v<cute::tuple_element_t<0, Stride>>) {
    cute::get<1>(made) = leading;
  } else {
    cute::get<0>(made) = leading;
  }
  return made;
}

static typename Kernel::Arguments arguments_of(Problem const &p) {
  typename Kernel::Arguments made{};
  made.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  int const m = int(p.m), n = int(p.n), k = int(p.k);
  made.problem_shape = SWAP ? cute::make_shape(n, m, k, 1) : cute::make_shape(m, n, k, 1);
  auto const strides_a = A_TRANSPOSED ? p.m : p.k, strides_b = B_TRANSPOSED ? p.k : p.n;
  made.mainloop.ptr_A = reinterpret_cast<Left const *>(SWAP ? p.b : p.a);
  made.mainloop.ptr_B = reinterpret_cast<Right const *>(SWAP ? p.a : p.b);
  made.mainloop.dA = stride<decltype(made.mainloop.dA)>(SWAP ? strides_b : strides_a);
  made.mainloop.dB = stride<decltype(made.mainloop.dB)>(SWAP ? strides_a : strides_b);
  made.epilogue.ptr_C = reinterpret_cast<CD const *>(p.c ? p.c : p.d);
  made.epilogue.ptr_D = reinterpret_cast<CD *>(p.d);
  made.epilogue.dC = stride<decltype(made.epilogue.dC)>(p.n);
  made.epilogue.dD = stride<decltype(made.epilogue.dD)>(p.n);
  made.epilogue.thread.alpha = ACC(p.alpha);
  made.epilogue.thread.beta = ACC(p.beta);
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

static cudaLaunchConfig_t launch_of(dim3 grid, cudaStream_t stream, cudaLaunchAttribute *cluster) {
  cluster->id = cudaLaunchAttributeClusterDimension;
  cluster->val.clusterDim = {cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1};
  cudaLaunchConfig_t made{};
  made.gridDim = grid;
  made.blockDim = dim3(Kernel::MaxThreadsPerBlock);
  made.dynamicSmemBytes = Kernel::SharedStorageSize;
  made.stream = stream;
  made.attrs = cluster;
  made.numAttrs = 1;
  return made;
}

// Loads the kernel on the current card. Says how many multiprocessors that has, and how many clusters of the kernel run at once.
ENTRY int gemm_open(std::int64_t *multiprocessors, std::int64_t *clusters) {
  int device = 0, count = 0, at_once = 0;
  void const *kernel = reinterpret_cast<void const *>(gemm);
  if (int error = said(cudaGetDevice(&device))) return error;
  if (int error = said(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device))) return error;
  if (int error = said(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize)))
    return error;
  cudaLaunchAttribute cluster;
  auto const launch = launch_of(dim3(cute::size<0>(Cluster{}), cute::size<1>(Cluster{})), nullptr, &cluster);
  if (int error = said(cudaOccupancyMaxActiveClusters(&at_once, kernel, &launch))) return error;
  *multiprocessors = count;
  *clusters = at_once;
  return 0;
}

// How many bytes of the card's memory a launch works in, the same for every operand set of the problem.
ENTRY int gemm_workspace(Problem const *problem, std::int64_t *bytes) {
  auto const arguments = arguments_of(*problem);
  if (!Kernel::can_implement(arguments)) return said(cutlass::Status::kErrorInvalidProblem);
  *bytes = std::int64_t(Kernel::get_workspace_size(arguments));
  return 0;
}

// CUTLASS leaves a descriptor zero that the driver refused to make.
static bool exists(cute::TmaDescriptor const *descriptor) {
  cute::TmaDescriptor const nothing{};
  return std::memcmp(descriptor, &nothing, sizeof nothing) != 0;
}

template <typename Params>
static bool descriptors_exist(Params const &params) {
  bool all = exists(params.mainloop.tma_load_a.get_tma_descriptor()) &&
             exists(params.mainloop.tma_load_b.get_tma_descriptor());
  if constexpr (EPILOGUE == 1) {
    all = all && exists(params.epilogue.tma_load_c.get_tma_descriptor()) &&
          exists(params.epilogue.tma_store_d.get_tma_descriptor());
  }
  return all;
}

// Writes what launches one operand set to `packed`, an address that is a multiple of 128.
ENTRY int gemm_pack(Packed *packed, Problem const *problem, void *workspace) {
  auto const arguments = arguments_of(*problem);
  if (!Kernel::can_implement(arguments)) return said(cutlass::Status::kErrorInvalidProblem);
  auto const params = Kernel::to_underlying_arguments(arguments, workspace);
  if (!descriptors_exist(params)) return said(cutlass::Status::kErrorInternal);
  new (packed) Packed{params, arguments, workspace, Kernel::get_grid_shape(params)};
  return 0;
}

// Stream-k counts in its workspace which blocks have added their part of a tile, and leaves the counts behind: each launch
// begins by setting them to zero, in the same stream.
ENTRY int gemm_launch(Packed const *packed, cudaStream_t stream) {
  if constexpr (STREAM_K) {
    cutlass::Status const status = Kernel::initialize_workspace(packed->arguments, packed->workspace, stream);
    if (status != cutlass::Status::kSuccess) return said(status);
  }
  cudaLaunchAttribute cluster;
  auto const launch = launch_of(packed->grid, stream, &cluster);
  return said(cudaLaunchKernelEx(&launch, gemm, packed->params));
}

// How many blocks a multiprocessor holds, and the blocks, tiles and stages of a problem that was packed.
ENTRY int gemm_resources(Packed const *packed, Resources *resources) {
  int resident = 0;
  if (int error = said(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, gemm, Kernel::MaxThreadsPerBlock,
                                                                     Kernel::SharedStorageSize)))
    return error;
  auto const shape = packed->arguments.problem_shape;
  auto const tiles = cute::ceil_div(std::int64_t(cute::get<0>(shape)), std::int64_t(cute::size<0>(Tile{}))) *
                     cute::ceil_div(std::int64_t(cute::get<1>(shape)), std::int64_t(cute::size<1>(Tile{})));
  dim3 const grid = packed->grid;
  *resources = {resident, std::int64_t(grid.x) * grid.y * grid.z, tiles, Kernel::DispatchPolicy::Stages};
  return 0;
}
