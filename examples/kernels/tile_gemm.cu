// A GEMM with tiles in shared memory: D = alpha * A * B + beta * C, row-major, float32.
//
// The farm compiles it with -DBM=, -DBN= and -DBK=. A block computes BM x BN elements of D, and a thread 4 x 4 of them. The grid is
// [ceil(n / BN), ceil(m / BM), batch], a block has BM * BN / 16 threads, and 4 * (BM + BN) * BK bytes of dynamic shared memory.

#define TM 4
#define TN 4
#define THREADS ((BM / TM) * (BN / TN))

extern "C" __global__ void __launch_bounds__(THREADS)
    tile_gemm(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c, float* __restrict__ d,
              int m, int n, int k, float alpha, float beta) {
    extern __shared__ float tiles[];
    float* a_tile = tiles;            // [BK][BM]: a column of A lies together
    float* b_tile = tiles + BK * BM;  // [BK][BN]

    const long long product = blockIdx.z;
    a += product * m * k;
    b += product * k * n;
    c += product * m * n;
    d += product * m * n;
    const int row_0 = blockIdx.y * BM, column_0 = blockIdx.x * BN;
    const int x = threadIdx.x % (BN / TN), y = threadIdx.x / (BN / TN);

    float sums[TM][TN] = {};
    for (int k_0 = 0; k_0 < k; k_0 += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
            const int row = row_0 + i / BK, step = k_0 + i % BK;
            a_tile[(i % BK) * BM + i / BK] = row < m && step < k ? a[(long long)row * k + step] : 0.0f;
        }
        for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
            const int step = k_0 + i / BN, column = column_0 + i % BN;
            b_tile[i] = step < k && column < n ? b[(long long)step * n + column] : 0.0f;
        }
        __syncthreads();
        for (int step = 0; step < BK; ++step) {
            float left[TM], right[TN];
            for (int i = 0; i < TM; ++i) left[i] = a_tile[step * BM + y * TM + i];
            for (int j = 0; j < TN; ++j) right[j] = b_tile[step * BN + j * (BN / TN) + x];
            for (int i = 0; i < TM; ++i) {
                for (int j = 0; j < TN; ++j) sums[i][j] += left[i] * right[j];
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < TM; ++i) {
        const int row = row_0 + y * TM + i;
        for (int j = 0; j < TN; ++j) {
            const int column = column_0 + j * (BN / TN) + x;
            if (row < m && column < n) {
                const long long at = (long long)row * n + column;
                d[at] = alpha * sums[i][j] + (beta != 0.0f ? beta * c[at] : 0.0f);
            }
        }
    }
}
