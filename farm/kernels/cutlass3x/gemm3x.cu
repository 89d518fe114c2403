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

