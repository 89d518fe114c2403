// What follows gemm2x_tiles.cu for batches and fused operations: D = activation(alpha * A * B + beta * C) for each product of a
// batch, or with slices of k. The kernel is GemmUniversal; gemm2x.cu remains that of all other problems, whose binaries keep
// their names.
//
// The bias of a product is one row that is C for every row of D: its leading dimension is 0. Then beta is 1, so there is either
// a C or a bias.
//
// Definitions besides those above:
//   ACTIVATION                    a functor of cutlass/epilogue/thread/activation.h, as Identity or SiLu
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/epilogue/thread/linear_combination_generic.h"
#include "cutlass/gemm/kernel/gemm_universal.h"

template <typename T>
using Activation = cutlass::epilogue::thread::ACTIVATION<T>;

constexpr bool PLAIN = cutlass::platform::is_same<Activation<ACC>, cutlass::epilogue::thread::Identity<ACC>>::value;
using Output =
    Either<PLAIN, cutlass::epilogue::thread::LinearCombination<CD, ALIGN_C, ACC, ACC>,
           cutlass::epilogue::thread::LinearCombinationGeneric<
               cutlass::epilogue::thread::ACTIVATION, CD, ALIGN_C, ACC, ACC, cutlass::epilogue::thread::ScaleType::Default,
               cutlass::FloatRoundStyle::round_to_nearest, Activation<ACC>::kIsHeavy>>;
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<SWIZZLE>;

constexpr bool SPLIT_K_SERIAL = true;
using Product = typename cutlass::gemm::kernel::DefaultGemm<
    AB, LayoutA, ALIGN_A, AB, LayoutB, ALIGN_B, CD, Rows, ACC, typename Use::Class, typename Use::Arch, Tile, Warp,
    typename Use::Instruction, Output, Swizzle, STAGES, SPLIT_K_SERIAL, Operator>::GemmKernel;
using Kernel = cutlass::gemm::kernel::GemmUniversal<typename Product::Mma, typename Product::Epilogue, Swizzle>;

// By value into a kernel, and one after the other in an array: a multiple of 16 bytes.
struct alignas(16) Packed {
  typename Kernel::Params params;
};

// What is known before there is a problem: bytes of Packed, bytes of dynamic shared memory, threads of a block.
extern "C" __constant__ int gemm_facts[] = {sizeof(Packed), sizeof(typename Kernel::SharedStorage), Kernel::kThreadCount};

// As in gemm2x.cu, for `batch` products whose matrices and biases follow each other. Blocks along z are products or slices of k:
// one of `batch` and `split_k` is 1. Without a bias its address is null, and with one beta is not used.
extern "C" __global__ void gemm_pack(Packed *packed, long long *launch, long long m, long long n, long long k, char *a,
                                     char *b, char *c, char *d, long long bytes_between_inputs,
                                     long long bytes_between_outputs, ACC alpha, ACC beta, long long split_k,
                                     int *semaphores, long long batch, char *bias, long long bytes_between_biases) {
  long long const set = blockIdx.x;
  GemmCoord const problem{int(m), int(n), int(k)};
  GemmCoord const tiles = Swizzle::get_tiled_shape(problem, {TILE_M, TILE_N, TILE_K}, int(batch > 1 ? batch : split_k));
  // Whole steps of TILE_K for each slice.
  long long const steps = (k + TILE_K - 1) / TILE_K;
  char *const addend = bias ? bias + set * bytes_between_biases : c ? c + set * bytes_between_outputs : nullptr;

  packed[set].params = typename Kernel::Params();
  typename Kernel::Params &params = packed[set].params;
  params.problem_size = problem;
  params.grid_tiled_shape = tiles;
  params.swizzle_log_tile = Swizzle::get_log_tile(tiles);
  params.mode = batch > 1 ? cutlass::gemm::GemmUniversalMode::kBatched : cutlass::gemm::GemmUniversalMode::kGemm;
  params.batch_count = int(batch);
  params.gemm_k_size = int((steps + split_k - 1) / split_k * TILE_K);
  params.semaphore = semaphores;
  params.params_A = typename Kernel::Mma::IteratorA::Params(LayoutA(int(A_TRANSPOSED ? m : k)));
  params.params_B = typename Kernel::Mma::IteratorB::Params(LayoutB(int(B_TRANSPOSED ? k : n)));
  params.params_C = typename Kernel::Epilogue::OutputTileIterator::Params(Rows(int(bias ? 0 : n)));
  params.params_D = typename Kernel::Epilogue::OutputTileIterator::Params(Rows(int(n)));
  params.output_op = typename Output::Params(alpha, bias ? ACC(1) : beta);
  params.ptr_A = a + set * bytes_between_inputs;
  params.ptr_B = b + set * bytes_between_inputs;
  params.ptr_C = addend;
  params.ptr_D = d + set * bytes_between_outputs;
  params.batch_stride_A = m * k;
  params.batch_stride_B = k * n;
  params.batch_stride_C = bias ? n : m * n;
  params.batch_stride_D = m * n;
  params.ptr_gather_A_indices = params.ptr_gather_B_indices = params.ptr_scatter_D_indices = nullptr;
  if (set == 0) {
    dim3 const grid = Swizzle::get_grid_shape(tiles);
    launch[0] = grid.x;
    launch[1] = grid.y;
    launch[2] = grid.z;
    launch[3] = split_k > 1 ? (long long)(sizeof(int)) * tiles.m() * tiles.n() : 0;
  }
}

extern "C" __global__ void __launch_bounds__(Kernel::kThreadCount, 1) gemm(__grid_constant__ Packed const packed) {
  extern __shared__ __align__(128) char shared[];
  Kernel kernel;
  kernel(packed.params, *reinterpret_cast<typename Kernel::SharedStorage *>(shared));
}
