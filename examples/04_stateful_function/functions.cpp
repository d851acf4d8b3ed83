// A worker lives as long as its lease, so a function can keep state in it: a connection, a model, a cache. This
// function keeps a table that is expensive to make, and a count of calls.

#include <hotlease/function.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

struct state {
    std::vector<double> square_roots;
    std::uint64_t calls = 0;

    state()
    {
        // An example of slow work: loading a model, opening a file, warming a cache.
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        for (int i = 0; i < 1000; ++i) {
            double root = 1;
            for (int step = 0; step < 60; ++step)
                root = (root + i / root) / 2;
            square_roots.push_back(root);
        }
    }
};

} // namespace

struct answer {
    double root;
    std::uint64_t calls;
};

HOTLEASE_FUNCTION(square_root)
{
    if (size != sizeof(std::uint32_t) || capacity < sizeof(answer))
        return hotlease_fail(1, "expects one 32-bit number, and room for an answer", out, capacity, produced);
    const std::uint32_t number = *static_cast<const std::uint32_t*>(in);
    if (number >= 1000)
        return hotlease_fail(2, "the table ends at 999", out, capacity, produced);

    // `*context->state` is one pointer for each slot. Only this slot's thread uses it, so it needs no lock. The worker
    // never frees the state: its memory is released when the process ends, at the end of the lease.
    if (*context->state == nullptr)
        *context->state = new state;
    auto* kept = static_cast<state*>(*context->state);

    *static_cast<answer*>(out) = {kept->square_roots[number], ++kept->calls};
    *produced = sizeof(answer);
    return 0;
}
