// Map: one call for each item, spread over all slots of a lease.
//
// map [libmap_functions.so [slots]]

#include <hotlease/hotlease.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

struct range {
    std::uint64_t begin, end;
};

int main(int argc, char** argv)
try {
    const char* library = argc > 1 ? argv[1] : "libmap_functions.so";
    const auto slots = static_cast<std::uint32_t>(argc > 2 ? std::atoi(argv[2]) : 2);

    // Two slots of one worker: two threads, each on a core of its own. (`.workers = 2` would make two processes
    // instead; then a crash of one process does not affect the other process.)
    hotlease::invoker invoker{hotlease::code{library}, {.slots = slots}};

    // 64 pieces of unequal work: a slot that has finished a piece takes the next piece.
    std::vector<range> pieces;
    for (std::uint64_t i = 0; i < 64; ++i)
        pieces.push_back({i * 5000, (i + 1) * 5000});
    const std::vector<std::uint64_t> primes = invoker.function("count_primes").map<std::uint64_t>(pieces);

    const std::uint64_t total = std::accumulate(primes.begin(), primes.end(), std::uint64_t{0});
    std::printf("%llu primes below 320000, counted by %u slots\n", static_cast<unsigned long long>(total),
                invoker.slots());
    const hotlease::usage used = invoker.deallocate();
    using milliseconds = std::chrono::duration<double, std::milli>;
    std::printf("%llu calls, %.1f ms of computing, %.1f ms of slots held\n",
                static_cast<unsigned long long>(used.invocations), milliseconds(used.compute).count(),
                milliseconds(used.allocated).count());
} catch (const hotlease::error& error) {
    std::fprintf(stderr, "map: %s\n", error.what());
    return 1;
}
