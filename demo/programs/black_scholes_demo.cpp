// Prices 10 million options: here, on one leased worker, and on both at once.
//
//   black_scholes_demo libblack_scholes.so results.json [options]
//
// Input and prices are in registered buffers: however large they are, an invocation copies nothing.

#include "local_function.hpp"
#include "options.hpp"
#include "report.hpp"

#include <hotlease/hotlease.hpp>

#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>

namespace {

constexpr int repetitions = 5;
// Error bound of the function's single precision; prices are up to 100.
constexpr double error_allowed = 3e-4;

// The largest difference of any price from the closed form; not a number counts as infinite.
double largest_error(const std::vector<double>& expected, std::span<const float> prices)
{
    double largest = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const double error = std::fabs(expected[i] - static_cast<double>(prices[i]));
        largest = error <= largest ? largest : std::isnan(error) ? HUGE_VAL : error;
    }
    return largest;
}

void demonstrate(const std::string& library, const std::string& results_path, std::size_t count)
{
    demo::results results;
    // Leases one core. The data takes milliseconds and the call a microsecond: no need to poll.
    hotlease::invoker invoker{hotlease::code{library}, {.label = "demo: Black-Scholes"}};
    const hotlease::function leased = invoker.function("black_scholes");
    demo::local_function local{library, "black_scholes"};
    auto options = invoker.input<black_scholes_option>(count);
    auto prices = invoker.output<float>(count);

    demo::begin("making " + std::to_string(count) + " options");
    demo::make_options(options);
    const double in_mib = static_cast<double>(count * sizeof(black_scholes_option)) / (1 << 20);
    const double out_mib = static_cast<double>(count * sizeof(float)) / (1 << 20);
    demo::done(demo::shown("%.0f MiB in, ", in_mib) + demo::shown("%.0f MiB out", out_mib));

    demo::begin("their prices by the closed form, in double precision");
    std::vector<double> expected(count);
    const double reference_s = demo::seconds([&] {
        for (std::size_t i = 0; i < count; ++i)
            expected[i] = demo::closed_form(options[i]);
    });
    demo::done(demo::shown("%.0f ms", reference_s * 1e3));

    const auto price_here = [&](std::size_t first, std::size_t last) {
        const std::span all_options(options);
        const std::span all_prices(prices);
        local(std::as_bytes(all_options.subspan(first, last - first)),
              std::as_writable_bytes(all_prices.subspan(first, last - first)));
    };
    const auto run = [&](const std::string& name, const std::string& what, const std::function<void()>& work) {
        demo::begin(what);
        std::vector<double> times;
        for (int i = 0; i < repetitions; ++i) {
            // The prices checked below are from this run, and their pages are already mapped.
            std::fill(prices.begin(), prices.end(), 0.0f);
            times.push_back(demo::seconds(work));
        }
        const double error = largest_error(expected, prices);
        const double time = demo::median(times);
        demo::done(demo::shown("%6.1f ms", time * 1e3) + demo::shown(", largest error %.1e", error));
        if (!(error <= error_allowed))
            throw std::runtime_error("prices are wrong: " + what);
        results.set(name + "_s", time);
        results.set(name + "_error", error);
        return time;
    };

    const double here = run("local", "all here, on one core", [&] { price_here(0, count); });
    run("leased", "all on one leased worker, in place", [&] {
        if (leased.call(options, count, prices) != count)
            throw std::runtime_error("the worker has not priced all options");
    });
    // Listing 2 of the rFaaS paper: start the worker's share, do ours, collect.
    const double split = run("split", "split: the first half leased, the second here", [&] {
        const std::size_t half = count / 2;
        auto first_half = leased.submit(options, half, prices);
        price_here(half, count);
        if (first_half.get() != half)
            throw std::runtime_error("the worker has not priced its half");
    });
    std::printf("  both cores together are %.2f times as fast as the program's own. (The leased one alone is as fast as that\n"
                "  one at best; its row shows that the worker uses the memory in place.)\n",
                here / split);

    results.set("options", static_cast<double>(count));
    results.set("in_mib", in_mib);
    results.set("out_mib", out_mib);
    results.write(results_path);
    invoker.deallocate();
}

} // namespace

int main(int argc, char** argv)
{
    if (argc < 3 || argc > 4) {
        std::cerr << "usage: black_scholes_demo libblack_scholes.so results.json [options]\n";
        return 2;
    }
    try {
        const std::size_t count = argc == 4 ? std::stoul(argv[3]) : 10'000'000;
        demonstrate(argv[1], argv[2], count);
    } catch (const std::exception& failure) {
        std::cerr << "\nblack_scholes_demo: " << failure.what() << '\n';
        return 1;
    }
}
