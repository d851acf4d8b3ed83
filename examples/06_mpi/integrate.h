// The work: a rank and its worker run the same code.
#ifndef INTEGRATE_H
#define INTEGRATE_H

#include <cstdint>

// Steps `begin` to `end` of the interval from 0 to 1, which is divided into `count` equal steps.
struct steps {
    std::uint64_t begin, end, count;
};

// Returns the integral of 4 / (1 + x^2) over these steps. Over all steps, it is pi.
inline double integrate(steps part)
{
    const double width = 1.0 / static_cast<double>(part.count);
    double sum = 0;
    for (std::uint64_t i = part.begin; i < part.end; ++i) {
        const double x = (static_cast<double>(i) + 0.5) * width;
        sum += 4 / (1 + x * x);
    }
    return sum * width;
}

#endif
