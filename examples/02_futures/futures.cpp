// Futures: start a call, do something else meanwhile, fetch the result.

#include <hotlease/hotlease.hpp>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

// Does the same as the worker's `task`.
static void local_task(const double* x, std::size_t count, double* y)
{
    for (std::size_t i = 0; i < count; ++i)
        y[i] = std::sin(x[i]) * std::sin(x[i]) + std::cos(x[i]) * std::cos(x[i]);
}

int main(int argc, char** argv)
try {
    hotlease::invoker invoker{hotlease::code{argc > 1 ? argv[1] : "libfutures_functions.so"}};
    const hotlease::function task = invoker.function("task");

    // A loop over 2n elements, shared with the worker: the worker does the first half, this program the second half.
    constexpr std::size_t n = 1'000'000;
    auto in = invoker.input<double>(2 * n);
    auto out = invoker.output<double>(2 * n);
    std::iota(in.begin(), in.end(), 0.0);

    auto first_half = task.submit(in, n, out);
    local_task(in.data() + n, n, out.data() + n);
    const std::size_t produced = first_half.get();
    const double sum = std::accumulate(out.begin(), out.end(), 0.0);
    std::printf("%zu elements from the worker, %zu from here, sum %.0f\n", produced, n, sum);

    // Many calls in flight: the slot runs them one after another, without waiting for this program in between.
    std::vector<hotlease::future<std::vector<double>>> results;
    for (int i = 0; i < 32; ++i)
        results.push_back(task.submit<double>(std::vector<double>(16, i)));
    double total = 0;
    for (auto& result : results)
        for (const double y : result.get())
            total += y;
    std::printf("32 calls in flight gave %.0f\n", total);

    // A callback instead of get(): it runs on a thread of the library as soon as the result has arrived.
    std::atomic<int> arrived = 0;
    for (int i = 0; i < 4; ++i)
        task.submit<double>(std::vector{1.0 * i}).then([&](hotlease::outcome<std::vector<double>> outcome) {
            arrived += static_cast<int>(std::lround(outcome.get().at(0)));
            arrived.notify_one();
        });
    for (int seen = arrived; seen < 4; seen = arrived)
        arrived.wait(seen);
    std::printf("%d callbacks\n", arrived.load());

    invoker.deallocate();
} catch (const hotlease::error& error) {
    std::fprintf(stderr, "futures: %s\n", error.what());
    return 1;
}
