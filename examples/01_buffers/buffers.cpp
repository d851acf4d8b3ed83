// Buffers: memory of any size that client and worker share, so that nothing is copied.

#include <hotlease/hotlease.hpp>

#include <chrono>
#include <cstdio>
#include <numeric>

int main(int argc, char** argv)
try {
    hotlease::invoker invoker{hotlease::code{argc > 1 ? argv[1] : "libbuffers_functions.so"}};
    const hotlease::function double_all = invoker.function("double_all");
    const hotlease::function last = invoker.function("last");

    // 100 MiB of numbers, in and out. A buffer is used like an array.
    constexpr std::size_t count = 100 * 1024 * 1024 / sizeof(double);
    auto in = invoker.input<double>(count);
    auto out = invoker.output<double>(count);
    std::iota(in.begin(), in.end(), 0.0);

    // The worker reads `in` and writes `out` in place.
    const std::size_t produced = double_all.call(in, count, out);
    std::printf("doubled %zu numbers; the last is %.0f\n", produced, out[count - 1]);

    // A call can use any part of a buffer, even the same part as input and output: here elements 1000 to 1999.
    double_all.call(in.part(1000, 1000), in.part(1000, 1000));
    std::printf("elements 999, 1000, 1999, 2000 are now %.0f, %.0f, %.0f, %.0f\n", in[999], in[1000],
                in[1999], in[2000]);

    // The cost of a call does not depend on the size of the memory that it names.
    for (const std::size_t size : {std::size_t{1}, std::size_t{131072}, count}) {
        using clock = std::chrono::steady_clock;
        constexpr int calls = 2000;
        const auto begin = clock::now();
        for (int i = 0; i < calls; ++i)
            last.call(in.part(0, size), out.part(0, 1));
        const std::chrono::duration<double, std::micro> time = clock::now() - begin;
        std::printf("input of %9zu bytes: %.2f us for each call\n", size * sizeof(double),
                    time.count() / calls);
    }
    invoker.deallocate();
} catch (const hotlease::error& error) {
    std::fprintf(stderr, "buffers: %s\n", error.what());
    return 1;
}
