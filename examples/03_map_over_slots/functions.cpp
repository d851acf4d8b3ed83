#include <hotlease/function.h>

#include <cstdint>

// Counts the primes in [begin, end).
struct range {
    std::uint64_t begin, end;
};

HOTLEASE_FUNCTION(count_primes);
HOTLEASE_IDEMPOTENT(count_primes); // counting again does no harm: if a worker dies, only time is lost

std::int32_t count_primes(hotlease_context* context, const void* in, std::uint64_t size, void* out,
                          std::uint64_t capacity, std::uint64_t* produced)
{
    if (size != sizeof(range) || capacity < sizeof(std::uint64_t))
        return hotlease_fail(1, "expects one range, and room for one number", out, capacity, produced);
    const auto [begin, end] = *static_cast<const range*>(in);
    std::uint64_t primes = 0;
    for (std::uint64_t n = begin; n < end; ++n) {
        bool prime = n >= 2;
        for (std::uint64_t divisor = 2; prime && divisor * divisor <= n; ++divisor)
            prime = n % divisor != 0;
        primes += prime;
        if (hotlease_cancelled(context))
            return hotlease_fail(2, "out of time", out, capacity, produced);
    }
    *static_cast<std::uint64_t*>(out) = primes;
    *produced = sizeof primes;
    return 0;
}
