// The classic tiled GEMM: one thread for each element of a TILE x TILE block of D, two tiles in shared memory.
//
//   D[m,n] = ACTIVATION(alpha * A[m,k] * B[k,n] + beta * C[m,n] + bias[n])
//
// GATED: D has n / 2 columns, ACTIVATION of the first n / 2 columns of alpha * A * B + bias times the last n / 2.
//
// Compiled with -DTILE=1..32, -DELEMENT=float|double, -DA_TRANSPOSED=0|1, -DB_TRANSPOSED=0|1, -DBATCHED=0|1, -DGROUPED=0|1,
// -DBIAS=0|1, -DGATED=0|1 and -DACTIVATION=none|relu|gelu|silu. A and B lie row-major as written, or transposed ([k,m], [n,k]); C and D lie
// row-major. C is not read where beta is 0. BATCHED: blocks along z have a product each, and the operands of products follow each
// other. GROUPED: groups of rows have a B and a bias each, and A is not transposed. A tile has rows of one group: `tiles` has of this
// group its first tile, its first row, where its rows end, and its number, as group_tiles.py describes.

// A transposed operand is read along its rows in memory and stored across the shared tile; the extra column keeps the
// threads of a warp off the same bank.
#define A_PAD (A_TRANSPOSED ? 1 : 0)
#define B_PAD (B_TRANSPOSED ? 1 : 0)

typedef long long index_t;  // m*k and the like pass 2^31

#if BIAS
#define BIAS_PARAMETER , const ELEMENT* __restrict__ bias
#else
#define BIAS_PARAMETER
#endif

#if GROUPED
#define GROUPS_PARAMETER , const index_t* __restrict__ tiles, index_t count
#else
#define GROUPS_PARAMETER
#endif

// As `farm.fusion.Activation` defines them. NaN stays NaN.
__device__ __forceinline__ ELEMENT none(ELEMENT x) { return x; }
__device__ __forceinline__ ELEMENT relu(ELEMENT x) { return x < ELEMENT(0) ? ELEMENT(0) : x; }
__device__ __forceinline__ ELEMENT gelu(ELEMENT x) {
    const ELEMENT root = 0.79788456080286535588;  // sqrt(2 / pi)
    return ELEMENT(0.5) * x * (ELEMENT(1) + tanh(root * (x + ELEMENT(0.044715) * x * x * x)));
}
__device__ __forceinline__ ELEMENT silu(ELEMENT x) { return x / (ELEMENT(1) + exp(-x)); }

extern "C" __global__ void __launch_bounds__(TILE* TILE)
    tiled_gemm(const ELEMENT* __restrict__ a, const ELEMENT* __restrict__ b, const ELEMENT* __restrict__ c,
               ELEMENT* __restrict__ d, index_t m, index_t n, index_t k, ELEMENT alpha, ELEMENT beta
               BIAS_PARAMETER GROUPS_PARAMETER) {
    const index_t columns = GATED ? n / 2 : n;  // of C and D
#if BATCHED
    a += blockIdx.z * m * k;
    b += blockIdx.z * k * n;
    c += blockIdx.z * m * columns;
    d += blockIdx.z * m * columns;
#if BIAS
    bias += blockIdx.z * n;
#endif
#endif
    __shared__ ELEMENT a_tile[TILE][TILE + A_PAD];
    __shared__ ELEMENT b_tile[TILE][TILE + B_PAD];
#if GATED
    __shared__ ELEMENT up_tile[TILE][TILE + B_PAD];
#endif
    const int x = threadIdx.x, y = threadIdx.y;
    const index_t column_0 = (index_t)blockIdx.x * TILE;
    const index_t column = column_0 + x;

    // A grid has 65535 blocks along y at the most; where the rows need more, a block walks on.
#if GROUPED
    const ELEMENT* __restrict__ const first_b = b;
#if BIAS
    const ELEMENT* __restrict__ const first_bias = bias;
#endif
    for (index_t tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const index_t row_0 = tiles[4 * tile + 1] + (tile - tiles[4 * tile]) * TILE, group = tiles[4 * tile + 3];
        m = tiles[4 * tile + 2];
        b = first_b + group * k * n;
#if BIAS
        bias = first_bias + group * n;
#endif
#else
    for (index_t row_0 = (index_t)blockIdx.y * TILE; row_0 < m; row_0 += (index_t)gridDim.y * TILE) {
#endif
        const index_t row = row_0 + y;
        ELEMENT sum = 0;
#if GATED
        ELEMENT up = 0;
#endif
        for (index_t k_0 = 0; k_0 < k; k_0 += TILE) {
#if A_TRANSPOSED
            a_tile[x][y] = (row_0 + x < m && k_0 + y < k) ? a[(k_0 + y) * m + row_0 + x] : ELEMENT(0);
#else
            a_tile[y][x] = (row < m && k_0 + x < k) ? a[row * k + k_0 + x] : ELEMENT(0);
#endif
#if B_TRANSPOSED
            b_tile[x][y] = (column_0 + y < columns && k_0 + x < k) ? b[(column_0 + y) * k + k_0 + x] : ELEMENT(0);
#if GATED
            up_tile[x][y] = (column_0 + y < columns && k_0 + x < k) ? b[(columns + column_0 + y) * k + k_0 + x] : ELEMENT(0);
#endif
#else
            b_tile[y][x] = (column < columns && k_0 + y < k) ? b[(k_0 + y) * n + column] : ELEMENT(0);
#if GATED
            up_tile[y][x] = (column < columns && k_0 + y < k) ? b[(k_0 + y) * n + columns + column] : ELEMENT(0);
#endif
#endif
            __syncthreads();
#pragma unroll
            for (int i = 0; i < TILE; ++i) {
                sum += a_tile[y][i] * b_tile[i][x];
#if GATED
                up += a_tile[y][i] * up_tile[i][x];
#endif
            }
            __syncthreads();
        }
        if (row < m && column < columns) {
            ELEMENT value = alpha * sum;
            if (beta != ELEMENT(0)) {
                value += beta * c[row * columns + column];
            }
#if BIAS
            value += bias[column];
#endif
            value = ACTIVATION(value);
#if GATED
            up *= alpha;
#if BIAS
            up += bias[columns + column];
#endif
            value *= up;
#endif
            d[row * columns + column] = value;
        }
    }
}
