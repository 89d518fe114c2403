// Checks a result without leaving the card: what workers/measure/verify.py does, in four launches instead of sixty.
//
// Compiled with -DA_KIND, -DB_KIND and -DD_KIND (C has D's): the element types of the list below. All sums are in double;
// where the operands are double already, dot products carry a second double for the rounding errors. The matrices of a batch
// lie one after the other, so rows of row-major ones are counted through all of them.

#define F64 0
#define F32 1  // and tf32, which lies in a float
#define F16 2
#define BF16 3
#define F8E4M3 4
#define F8E5M2 5
#define I8 6
#define I32 7
#define I4 8  // two in a byte, the first in the low bits
#define F4 9

#define GROUP 32    // columns in one signed sum: the lanes of a warp
#define PICKED 8    // matrices, rows and columns that are compared exactly where the problem is large
#define WARPS 8     // of a block
#define INFINITE __longlong_as_double(0x7FF0000000000000ll)

typedef long long index_t;
typedef unsigned long long word_t;

template <int KIND> struct element;
template <> struct element<F64> {
    typedef double stored;
    static __device__ double number(stored x) { return x; }
};
template <> struct element<F32> {
    typedef float stored;
    static __device__ double number(stored x) { return x; }
};
template <> struct element<F16> {
    typedef unsigned short stored;
    static __device__ double number(stored x) {
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
        return wide;
    }
};
template <> struct element<BF16> {
    typedef unsigned short stored;
    static __device__ double number(stored x) { return __uint_as_float((unsigned)x << 16); }
};
template <> struct element<F8E4M3> {  // no infinities, one NaN
    typedef unsigned char stored;
    static __device__ double number(stored x) {
        const int exponent = x >> 3 & 15, mantissa = x & 7;
        if (exponent == 15 && mantissa == 7) return nan("");
        const double size = exponent ? ldexp(8.0 + mantissa, exponent - 10) : ldexp((double)mantissa, -9);
        return x >> 7 ? -size : size;
    }
};
template <> struct element<F8E5M2> {  // the upper half of a half
    typedef unsigned char stored;
    static __device__ double number(stored x) { return element<F16>::number((unsigned short)x << 8); }
};
template <> struct element<I8> {
    typedef signed char stored;
    static __device__ double number(stored x) { return x; }
};
template <> struct element<I32> {
    typedef int stored;
    static __device__ double number(stored x) { return x; }
};

template <> struct element<I4> {
    typedef unsigned char stored;
    static __device__ double number(stored x) { return x < 8 ? x : x - 16; }
};
template <> struct element<F4> {  // e2m1
    typedef unsigned char stored;
    static __device__ double number(stored x) {
        const int exponent = x >> 1 & 3;
        const double size = exponent ? ldexp(2.0 + (x & 1), exponent - 2) : 0.5 * (x & 1);
        return x >> 3 ? -size : size;
    }
};

// An element of B by its place.
template <int KIND> __device__ double number_at(const typename element<KIND>::stored* x, index_t place) {
    if (KIND == I4 || KIND == F4) return element<KIND>::number((unsigned)x[place / 2] >> place % 2 * 4 & 15);
    return element<KIND>::number(x[place]);
}

typedef element<A_KIND> of_a;
typedef element<B_KIND> of_b;
typedef element<D_KIND> of_d;

// SplitMix64's mixing function.
__device__ word_t mixed(word_t z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

__device__ double sign(word_t seed, index_t column) { return mixed(mixed(seed) + column) & 1 ? 1.0 : -1.0; }

// The last, the first, and others by chance: the edges are where a guard goes wrong.
__device__ index_t picked(word_t seed, int number, index_t extent) {
    if (number < 2) return number ? 0 : extent - 1;
    return mixed(mixed(seed) - number) % (word_t)extent;
}

__device__ double sum_of_warp(double x) {
    for (int apart = 16; apart; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

// The larger error; what is not a number is an infinite one.
__device__ double worse(double worst, double error) { return isnan(error) ? INFINITE : fmax(worst, error); }

// As words, doubles that are not negative have the order of their numbers.
__device__ void raise(double* largest, double error) {
    atomicMax((word_t*)largest, (word_t)__double_as_longlong(error));
}

extern "C" __global__ void widen(const of_a::stored* __restrict__ a, double* __restrict__ wide, index_t count) {
    const index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) wide[i] = of_a::number(a[i]);
}

// B[batch, k, n] -> sums[batch, k, groups] of neighbouring columns, each with its sign. `transposed`: B lies as [batch, n, k].
extern "C" __global__ void sum_groups(const of_b::stored* __restrict__ b, double* __restrict__ sums, index_t batch,
                                      index_t k, index_t n, index_t transposed, word_t seed) {
    const index_t groups = (n + GROUP - 1) / GROUP;
    if (transposed) {  // neighbouring threads read neighbouring rows of B, which lie side by side
        const index_t step = (index_t)gridDim.x * blockDim.x;
        for (index_t i = blockIdx.y; i < batch * groups; i += gridDim.y) {
            const index_t matrix = i / groups, group = i % groups;
            const index_t first = group * GROUP, end = first + GROUP < n ? first + GROUP : n;
            for (index_t row = (index_t)blockIdx.x * blockDim.x + threadIdx.x; row < k; row += step) {
                double sum = 0;
                for (index_t column = first; column < end; ++column)
                    sum += sign(seed, column) * number_at<B_KIND>(b, (matrix * n + column) * k + row);
                sums[(matrix * k + row) * groups + group] = sum;
            }
        }
    } else {  // a warp for each group
        const index_t lane = threadIdx.x % 32, warp = (index_t)blockIdx.x * WARPS + threadIdx.x / 32;
        for (index_t row = blockIdx.y; row < batch * k; row += gridDim.y) {
            for (index_t group = warp; group < groups; group += (index_t)gridDim.x * WARPS) {
                const index_t column = group * GROUP + lane;
                const double signed_number = column < n ? sign(seed, column) * number_at<B_KIND>(b, row * n + column) : 0.0;
                const double sum = sum_of_warp(signed_number);
                if (lane == 0) sums[row * groups + group] = sum;
            }
        }
    }
}

// The largest |signed sum of D - (alpha * sums + beta * signed sum of C)| / scale, over the groups of all rows.
extern "C" __global__ void compare_groups(const double* __restrict__ sums, const of_d::stored* __restrict__ c,
                                          const of_d::stored* __restrict__ d, index_t rows, index_t n, double alpha,
                                          double beta, double scale, word_t seed, double* largest) {
    const index_t groups = (n + GROUP - 1) / GROUP;
    const index_t lane = threadIdx.x % 32, warp = (index_t)blockIdx.x * WARPS + threadIdx.x / 32;
    double worst = 0;
    for (index_t row = blockIdx.y; row < rows; row += gridDim.y) {
        for (index_t group = warp; group < groups; group += (index_t)gridDim.x * WARPS) {
            const index_t column = group * GROUP + lane;
            double off = 0;
            if (column < n) {
                off = -of_d::number(d[row * n + column]);
                if (beta != 0) off += beta * of_d::number(c[row * n + column]);
                off *= sign(seed, column);
            }
            worst = worse(worst, fabs(alpha * sums[row * groups + group] + sum_of_warp(off)) / scale);
        }
    }
    if (lane == 0) raise(largest, worst);
}

// The largest |D - (alpha * A*B + beta * C)| / scale over all elements, or where `all` is not set over those picked.
extern "C" __global__ void compare_elements(const of_a::stored* __restrict__ a, const of_b::stored* __restrict__ b,
                                            const of_d::stored* __restrict__ c, const of_d::stored* __restrict__ d,
                                            index_t batch, index_t m, index_t n, index_t k, index_t a_transposed,
                                            index_t b_transposed, double alpha, double beta, double scale, index_t all,
                                            word_t seed, double* largest) {
    const index_t columns = all ? n : PICKED, rows = all ? m : PICKED, step = (index_t)gridDim.x * WARPS;
    const index_t count = (all || batch < PICKED ? batch : PICKED) * rows * columns;
    const int lane = threadIdx.x % 32;
    double worst = 0;
    for (index_t i = (index_t)blockIdx.x * WARPS + threadIdx.x / 32; i < count; i += step) {
        index_t matrix = i / columns / rows, row = i / columns % rows, column = i % columns;
        if (!all) {
            if (batch > PICKED) matrix = picked(seed + 2, (int)matrix, batch);
            row = picked(seed, (int)row, m);
            column = picked(seed + 1, (int)column, n);
        }
        const of_a::stored* const a_of = a + matrix * m * k;
        const index_t place = (matrix * m + row) * n + column;
        double sum = 0, rest = 0;
        for (index_t inner = lane; inner < k; inner += 32) {
            const double x = of_a::number(a_of[a_transposed ? inner * m + row : row * k + inner]);
            const double y =
                number_at<B_KIND>(b, matrix * k * n + (b_transposed ? column * k + inner : inner * n + column));
#if A_KIND == F64  // Dot2 of Ogita, Rump and Oishi, "Accurate sum and dot product", 2005
            const double product = x * y, next = sum + product, added = next - sum;
            rest += fma(x, y, -product) + ((sum - (next - added)) + (product - added));
            sum = next;
#else
            sum += x * y;
#endif
        }
        for (int apart = 16; apart; apart /= 2) {
            const double other = __shfl_xor_sync(~0u, sum, apart), next = sum + other, added = next - sum;
            rest += __shfl_xor_sync(~0u, rest, apart) + ((sum - (next - added)) + (other - added));
            sum = next;
        }
        double off = -of_d::number(d[place]);
        if (beta != 0) off = fma(beta, of_d::number(c[place]), off);
        worst = worse(worst, fabs(fma(alpha, sum, off) + alpha * rest) / scale);
    }
    if (lane == 0) raise(largest, worst);
}
