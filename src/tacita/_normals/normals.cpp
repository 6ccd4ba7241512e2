// tacita/_normals/definition.py in C++: the same bits, in vectors. Compile without contraction (-ffp-contract=off) and
// without -ffast-math. The constants are prepended by compiled.py.
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define WIDTH (BYTES / 4)

typedef uint32_t Words __attribute__((vector_size(BYTES)));
typedef int32_t Signed __attribute__((vector_size(BYTES)));
typedef float Reals __attribute__((vector_size(BYTES)));
#define INLINE static inline __attribute__((always_inline))

#define ROTATED(x, n) ((x << n) | (x >> (32 - n)))
#define STEP(a, b, c, n) x[a] += x[b]; x[c] ^= x[a]; x[c] = ROTATED(x[c], n);
#define QUARTER(a, b, c, d) STEP(a, b, d, 16) STEP(c, d, b, 12) STEP(a, b, d, 8) STEP(c, d, b, 7)

INLINE Reals real(Words x) { return __builtin_convertvector((Signed)x, Reals); }

template <int N> INLINE Reals polynomial(Reals x, const float (&coefficients)[N]) {
    Reals value = x * coefficients[0] + coefficients[1];
    for (int i = 2; i < N; i++) value = value * x + coefficients[i];
    return value;
}

INLINE Reals square_root(Reals square) {
    Reals inverse = (Reals)(SEED - ((Words)square >> 1));
    inverse = inverse * FACTOR * (SUMMAND - inverse * inverse * square);
    inverse = inverse * (1.5f - inverse * inverse * (square * 0.5f));
    Reals root = square * inverse;
    return root + (square - root * root) * (inverse * 0.5f);
}

INLINE void pair(Words high, Words low, Words angle, float* out) {
    Words mirrored = (Words)((Signed)high >> 31);
    Reals v = (real((low ^ mirrored) >> 1) + 0.5f) * 0x1p-31f + real(high ^ mirrored);
    Words bits = (Words)v, scaled = (Words)(v * 0x1p-32f);
    Words x = (Words)(1.0f - (Reals)((bits & 0x7fffff) | 0x3f000000));
    Reals k = real((158 - (bits >> 23)) & ~mirrored), chosen = (Reals)((x & ~mirrored) | (scaled & mirrored));
    Reals root = square_root(polynomial(chosen, LOGARITHM) * chosen + k * TWO_LN2);
    Reals t = real((Words)((Signed)(angle << 2) >> 2)) * 0x1p-30f, g = t * t;
    Words first = (Words)(polynomial(g, COSINE) * root) ^ (angle & 0x80000000u);
    Words second = (Words)(polynomial(g, SINE) * t * root);
    Words change = (first ^ second) & (Words)((Signed)(angle << 1) >> 31);
    first ^= change, second ^= change;
    memcpy(out, &first, BYTES);
    memcpy(out + LANES, &second, BYTES);
}

extern "C" void tacita_normals(const uint32_t* key, uint64_t first, uint64_t groups, float* out) {
    const uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};  // "expand 32-byte k"
    Words lane, zero;
    for (int i = 0; i < WIDTH; i++) lane[i] = i, zero[i] = 0;
    for (uint64_t group = 0; group < groups; group++, out += 2 * PAIRS * LANES)
        for (int place = 0; place < LANES; place += WIDTH) {
            uint64_t counter = (first + group) * LANES + place;
            Words x[16], start[16];
            for (int i = 0; i < 4; i++) start[i] = zero + constants[i];
            for (int i = 0; i < 8; i++) start[4 + i] = zero + key[i];
            start[12] = lane + (uint32_t)counter;
            start[13] = zero + (uint32_t)(counter >> 32);
            start[14] = start[15] = zero;
            for (int i = 0; i < 16; i++) x[i] = start[i];
            for (int round = 0; round < 10; round++) {
                QUARTER(0, 4, 8, 12) QUARTER(1, 5, 9, 13) QUARTER(2, 6, 10, 14) QUARTER(3, 7, 11, 15)
                QUARTER(0, 5, 10, 15) QUARTER(1, 6, 11, 12) QUARTER(2, 7, 8, 13) QUARTER(3, 4, 9, 14)
            }
            for (int i = 0; i < 16; i++) x[i] += start[i];
            for (int i = 0; i < PAIRS; i++) pair(x[3 * i], x[3 * i + 1], x[3 * i + 2], out + 2 * i * LANES + place);
        }
}
