// Function of a gang: each rank computes its share of an integral, and all ranks together add up the whole integral.

#include "share.h"

#include <hotlease/gang.hpp>

// The integral of 4/(1+x*x) from 0 to 1, which is pi, over as many intervals as the caller asks for.
HOTLEASE_FUNCTION(integrate)
{
    if (size != sizeof(std::uint64_t))
        return hotlease_fail(1, "integrate takes one 64-bit number", out, capacity, produced);
    const std::uint64_t intervals = *static_cast<const std::uint64_t*>(in);

    return hotlease::on_gang(context, out, capacity, produced, [&](const hotlease::communicator& all) {
        double mine = 0;
        for (std::uint64_t i = all.rank(); i < intervals; i += all.size()) {
            const double x = (static_cast<double>(i) + 0.5) / static_cast<double>(intervals);
            mine += 4 / (1 + x * x);
        }
        mine /= static_cast<double>(intervals);
        // Every rank gets the sum. If a rank fails, here or before, the call ends at all other ranks, too.
        return hotlease::give(share{all.rank(), mine, all.allreduce(mine, hotlease::op::sum)}, out, capacity);
    });
}
