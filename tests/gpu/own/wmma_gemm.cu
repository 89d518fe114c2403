// An honest kernel on tensor cores: D = A * B, f16 with sums in f32, row-major. A warp computes 16 x 16 elements of D. m, n and k
// are multiples of 16.

#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void wmma_gemm(const __half* a, const __half* b, __half* d, int m, int n, int k) {
    const int warp = threadIdx.x / 32;
    const int column = (blockIdx.x * (blockDim.x / 32) + warp) * 16, row = blockIdx.y * 16;
    if (column >= n || row >= m) return;
    __shared__ float staged[WARPS][16 * 16];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
    wmma::fill_fragment(sums, 0.0f);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(left, a + (size_t)row * k + i, k);
        wmma::load_matrix_sync(right, b + (size_t)i * n + column, n);
        wmma::mma_sync(sums, left, right, sums);
    }
    wmma::store_matrix_sync(staged[warp], sums, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x % 32; i < 256; i += 32) {
        d[(size_t)(row + i / 16) * n + column + i % 16] = __float2half(staged[warp][i]);
    }
}
