#include <hotlease/function.h>

#include <cstddef>

// Doubles every number. The same code works for input and output in buffers of the client, and for input and output
// that are sent through the ring.
HOTLEASE_FUNCTION(double_all)
{
    (void)context;
    if (size > capacity) {
        *produced = size; // the capacity that is needed; the caller gets an error with this size
        return 0;
    }
    const auto* numbers = static_cast<const double*>(in);
    auto* doubled = static_cast<double*>(out);
    const std::size_t count = size / sizeof *numbers;
    for (std::size_t i = 0; i < count; ++i)
        doubled[i] = 2 * numbers[i];
    *produced = count * sizeof *doubled;
    return 0;
}

// Writes one number for an input of any size, so that the measured time is only the cost of the call.
HOTLEASE_FUNCTION(last)
{
    (void)context;
    const std::size_t count = size / sizeof(double);
    if (count == 0 || capacity < sizeof(double))
        return hotlease_fail(1, "needs at least one number in and room for one", out, capacity, produced);
    *static_cast<double*>(out) = static_cast<const double*>(in)[count - 1];
    *produced = sizeof(double);
    return 0;
}
