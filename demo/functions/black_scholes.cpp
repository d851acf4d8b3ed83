// Prices European options by the Black-Scholes formula: a function that reads and writes in place.
//
//   d1 = (ln(S/K) + (r + v^2/2) T) / (v sqrt(T)),  d2 = d1 - v sqrt(T)
//   call = S N(d1) - K e^(-rT) N(d2),              put = K e^(-rT) N(-d2) - S N(-d1)
//
// Everything below is written so that the compiler turns the one loop over a block of options into
// vector instructions: no call, no branch, no double. The elementary functions are therefore our own.
// A price is within 1e-6 of (spot + strike) of the formula in double precision.

#include "black_scholes.h"

#include <hotlease/function.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#define INLINE static inline __attribute__((always_inline))

static_assert(sizeof(black_scholes_option) == 24);

namespace {

// ln(x) for finite normal x > 0: x = 2^e m with m in [sqrt(1/2), sqrt(2)), then with s = (m-1)/(m+1)
// ln(m) = 2 (s + s^3/3 + s^5/5 + ...), |s| < 0.1716, where the term after s^9 is below 2^-28.
INLINE float natural_logarithm(float x)
{
    constexpr std::uint32_t sqrt_half = 0x3f3504f3;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::int32_t exponent = static_cast<std::int32_t>(bits - sqrt_half) >> 23;
    const float m = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(exponent) << 23));
    const float s = (m - 1.0f) / (m + 1.0f);
    const float s2 = s * s;
    const float tail = s2 * (1.0f / 3 + s2 * (1.0f / 5 + s2 * (1.0f / 7 + s2 * (1.0f / 9))));
    constexpr float ln2 = 0.693147180559945f;
    return static_cast<float>(exponent) * ln2 + 2.0f * (s + s * tail);
}

// e^x: x = n ln 2 + f with |f| <= ln(2)/2, then the Taylor series of e^f. Clamped where the result
// would no longer be a normal number.
INLINE float exponential(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number.
    constexpr float rounder = 12582912.0f;
    const float n = (x * 1.44269504088896f + rounder) - rounder;
    // ln 2 in two parts, the first with trailing zeros, so that n * part is exact.
    const float f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float series =
        1.0f +
        f * (1.0f + f * (1.0f / 2 + f * (1.0f / 6 + f * (1.0f / 24 + f * (1.0f / 120 + f * (1.0f / 720))))));
    const std::int32_t scale = (static_cast<std::int32_t>(n) + 127) << 23;
    return series * std::bit_cast<float>(scale);
}

// The cumulative normal distribution, by formula 26.2.17 of Abramowitz and Stegun, Handbook of
// Mathematical Functions (absolute error below 7.5e-8), as PARSEC and most textbooks do.
INLINE float normal_distribution(float x)
{
    const float distance = std::fabs(x);
    const float t = 1.0f / (1.0f + 0.2316419f * distance);
    const float polynomial =
        t * (0.319381530f +
             t * (-0.356563782f + t * (1.781477937f + t * (-1.821255978f + t * 1.330274429f))));
    constexpr float one_by_sqrt_2_pi = 0.398942280401433f;
    const float upper_tail = one_by_sqrt_2_pi * exponential(-0.5f * distance * distance) * polynomial;
    return x < 0.0f ? upper_tail : 1.0f - upper_tail;
}

// Options priced between two looks at the cancel flag, and kept as columns: 6 arrays, 12 KiB, in L1.
constexpr std::size_t block_options = 512;

struct Block {
    float spot[block_options], strike[block_options], rate[block_options];
    float volatility[block_options], years[block_options];
    std::uint32_t kind[block_options];
};

INLINE void price_block(const black_scholes_option* __restrict options, float* __restrict prices,
                        std::size_t count)
{
    // Records to columns first: the arithmetic is then contiguous, in any layout of the record.
    alignas(64) Block column;
    for (std::size_t i = 0; i < count; ++i) {
        column.spot[i] = options[i].spot;
        column.strike[i] = options[i].strike;
        column.rate[i] = options[i].rate;
        column.volatility[i] = options[i].volatility;
        column.years[i] = options[i].years;
        column.kind[i] = options[i].kind;
    }
    for (std::size_t i = 0; i < count; ++i) {
        const float spread = column.volatility[i] * std::sqrt(column.years[i]);
        const float variance = column.volatility[i] * column.volatility[i];
        const float drift = (column.rate[i] + 0.5f * variance) * column.years[i];
        const float d1 = (natural_logarithm(column.spot[i] / column.strike[i]) + drift) / spread;
        const float d2 = d1 - spread;
        const float discounted = column.strike[i] * exponential(-column.rate[i] * column.years[i]);
        // A put is the call with both signs turned: put = -(S N(-d1) - K e^(-rT) N(-d2)).
        const float sign = column.kind[i] == BLACK_SCHOLES_CALL  ? 1.0f
                           : column.kind[i] == BLACK_SCHOLES_PUT ? -1.0f
                                                                 : std::numeric_limits<float>::quiet_NaN();
        prices[i] = sign * (column.spot[i] * normal_distribution(sign * d1) -
                            discounted * normal_distribution(sign * d2));
    }
}

// The block for every processor, and the block for processors of 2013 and later, which is two to four times as fast.
using PriceBlock = void (*)(const black_scholes_option*, float*, std::size_t);

void price_block_anywhere(const black_scholes_option* options, float* prices, std::size_t count)
{
    price_block(options, prices, count);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void price_block_avx2(const black_scholes_option* options, float* prices,
                                                          std::size_t count)
{
    price_block(options, prices, count);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))) void
price_block_avx512(const black_scholes_option* options, float* prices, std::size_t count)
{
    price_block(options, prices, count);
}

PriceBlock best_price_block()
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return price_block_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return price_block_avx2;
    return price_block_anywhere;
}
#else
PriceBlock best_price_block()
{
    return price_block_anywhere;
}
#endif

} // namespace

HOTLEASE_FUNCTION(black_scholes);
HOTLEASE_IDEMPOTENT(black_scholes);

std::int32_t black_scholes(hotlease_context* context, const void* in, std::uint64_t size, void* out,
                           std::uint64_t capacity, std::uint64_t* produced)
{
    if (size % sizeof(black_scholes_option) != 0)
        return hotlease_fail(BLACK_SCHOLES_SIZE, "the input is not a whole number of 24-byte options", out,
                             capacity, produced);
    const std::size_t count = size / sizeof(black_scholes_option);
    *produced = count * sizeof(float);
    if (*produced > capacity)
        return 0; // the worker tells the caller how much is needed

    const PriceBlock price = best_price_block();
    const auto* options = static_cast<const black_scholes_option*>(in);
    auto* prices = static_cast<float*>(out);
    for (std::size_t done = 0; done < count; done += block_options) {
        if (hotlease_cancelled(context))
            return hotlease_fail(BLACK_SCHOLES_CANCELLED, "the deadline passed", out, capacity, produced);
        const std::size_t left = count - done;
        price(options + done, prices + done, left < block_options ? left : block_options);
    }
    return 0;
}
