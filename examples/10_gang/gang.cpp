// A gang: workers that are leased together, all or none, and run a function at the same time, one rank each. The
// function has a communicator, with which the ranks add up their results.
//
//     ./gang [RANKS]     (default: 2; each rank needs a core)

#include "share.h"

#include <hotlease/gang.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv)
try {
    hotlease::options options;
    options.workers = argc > 1 ? static_cast<std::uint32_t>(std::atoi(argv[1])) : 2;
    options.patience = std::chrono::seconds(10); // time to wait until so many cores are free at once
    hotlease::gang gang{hotlease::code{"libgang_functions.so"}, options};

    // The first call makes the communicator; the second one uses it.
    for (std::uint64_t intervals : {1000, 1'000'000})
        for (const share& of : gang.call_value<share>("integrate", intervals))
            std::printf("rank %u of %u: %.3f of pi = %.10f\n", of.rank, gang.ranks(), of.part, of.sum);

    gang.end();
} catch (const hotlease::error& error) {
    std::fprintf(stderr, "%s\n", error.what()); // which rank failed, how, why, what to do next
    return 1;
}
