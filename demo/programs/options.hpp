// Options to price, and their exact prices.
#ifndef HOTLEASE_DEMO_OPTIONS_HPP
#define HOTLEASE_DEMO_OPTIONS_HPP

#include <black_scholes.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>

namespace demo {

// Deterministic numbers that look random: splitmix64 of a counter, scaled to [low, high).
inline float spread(std::uint64_t counter, float low, float high)
{
    std::uint64_t z = (counter + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return low + (high - low) * static_cast<float>(z >> 40) * 0x1p-24f;
}

// The parameters of PARSEC's blackscholes benchmark (kinds, ranges and number of options of its largest
// input); where PARSEC repeats a table of a thousand options, each of these is different.
inline void make_options(std::span<black_scholes_option> options)
{
    for (std::size_t i = 0; i < options.size(); ++i) {
        const std::uint64_t counter = 8 * static_cast<std::uint64_t>(i);
        black_scholes_option& option = options[i];
        option.spot = spread(counter, 40, 120);
        option.strike = option.spot * spread(counter + 1, 0.8f, 1.2f);
        option.rate = spread(counter + 2, 0.025f, 0.1f);
        option.volatility = spread(counter + 3, 0.05f, 0.65f);
        option.years = spread(counter + 4, 0.05f, 1);
        option.kind = i % 2 == 0 ? BLACK_SCHOLES_CALL : BLACK_SCHOLES_PUT;
    }
}

// The closed form in double precision, with the error function of the C library.
inline double closed_form(const black_scholes_option& option)
{
    const auto normal = [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); };
    const double spot = option.spot, strike = option.strike, rate = option.rate;
    const double volatility = option.volatility, years = option.years;
    const double spread = volatility * std::sqrt(years);
    const double d1 = (std::log(spot / strike) + (rate + 0.5 * volatility * volatility) * years) / spread;
    const double d2 = d1 - spread;
    const double discounted = strike * std::exp(-rate * years);
    return option.kind == BLACK_SCHOLES_CALL ? spot * normal(d1) - discounted * normal(d2)
                                             : discounted * normal(-d2) - spot * normal(-d1);
}

} // namespace demo

#endif
