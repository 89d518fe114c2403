using Output = cutlass::epilogue::thread::LinearCombination<CD, ALIGN_C, ACC, ACC>;
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<SWIZZLE>;

constexpr bool SPLIT_K_SERIAL = true;  // how many slices is asked for when it is launched, one by default
using Kernel = typename cutlass::gemm::kernel::DefaultGemm<
    AB, LayoutA, ALIGN_A, AB, LayoutB, ALIGN_B, CD, Rows, ACC, typename Use::Class, typename Use::Arch, Tile, Warp,
    typename Use::Instruction, Output, Swizzle, STAGES, SPLIT_K_SERIAL, Operator>::GemmKernel;

// By value into a kernel, and one after the other in an array: a multiple of 16 bytes.
struct alignas(16) Packed {
  typename Kernel::Params params;
};

// What is known before there is a problem: bytes of Packed, bytes of dynamic shared memory, threads of a block.
extern "C" __constant__ int gemm_facts[] = {sizeof(Packed), sizeof(typename Kernel::SharedStorage), Kernel::kThreadCount};

// One block of one thread for each operand set. `launch` receives the grid's x, y and z, and how many bytes of the
// workspace are semaphores. They are needed where split_k is above 1, and must be zero before the first launch; every
// complete launch leaves them zero. C is not read where beta is 0.
extern "C" __global__ void gemm_pack(Packed *packed, long long *launch, long long m, long long n, long long k, char *a,
                                     char *b, char *c, char *d, long long bytes_between_inputs,
                                     long long bytes_between_outputs, ACC alpha, ACC beta, long long split_k,
                                     int *semaphores) {
  long long const set = blockIdx.x;
  GemmCoord const problem{int(m), int(n), int(k)};
  GemmCoord const tiles = Swizzle::get_tiled_shape(problem, {TILE_M, TILE_N, TILE_K}, int(split_k));
  a += set * bytes_between_inputs;
  b += set * bytes_between_inputs;
  c = c ? c + set * bytes_between_outputs : nullptr;
  d += set * bytes_between_outputs;
  packed[set].params = typename Kernel::Params(
      problem, tiles, {reinterpret_cast<AB *>(a), LayoutA(int(A_TRANSPOSED ? m : k))},
      {reinterpret_cast<AB *>(b), LayoutB(int(B_TRANSPOSED ? k : n))}, {reinterpret_cast<CD *>(c), Rows(int(n))},
      {reinterpret_cast<CD *>(d), Rows(int(n))}, typename Output::Params(alpha, beta), semaphores);
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
