// A stateful function: its first call makes the state and is slow, all later calls are fast.

#include <hotlease/hotlease.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>

struct answer {
    double root;
    std::uint64_t calls;
};

int main(int argc, char** argv)
try {
    // One slot: each slot has its own state, so with several slots the calls would be counted separately. The slot
    // polls for its next call instead of sleeping, and this program polls for the answer.
    hotlease::invoker invoker{
        hotlease::code{argc > 1 ? argv[1] : "libstateful_functions.so"},
        {.polling = hotlease::polling::hot, .completion = hotlease::completion::spin}};
    const hotlease::function square_root = invoker.function("square_root");

    using clock = std::chrono::steady_clock;
    for (std::uint32_t number = 1; number <= 5; ++number) {
        const auto begin = clock::now();
        const answer got = square_root.call_value<answer>(number);
        const std::chrono::duration<double, std::micro> time = clock::now() - begin;
        std::printf("call %llu: the square root of %u is %.6f (%.1f us)\n",
                    static_cast<unsigned long long>(got.calls), number, got.root, time.count());
    }
    invoker.deallocate();
} catch (const hotlease::error& error) {
    std::fprintf(stderr, "stateful: %s\n", error.what());
    return 1;
}
