#include <hotlease/function.h>

#include <cmath>
#include <cstddef>

// An example of work that takes some time for each element, such as a step of a heat equation.
HOTLEASE_FUNCTION(task)
{
    (void)context;
    if (size > capacity) {
        *produced = size;
        return 0;
    }
    const auto* x = static_cast<const double*>(in);
    auto* y = static_cast<double*>(out);
    const std::size_t count = size / sizeof *x;
    for (std::size_t i = 0; i < count; ++i)
        y[i] = std::sin(x[i]) * std::sin(x[i]) + std::cos(x[i]) * std::cos(x[i]);
    *produced = count * sizeof *y;
    return 0;
}
