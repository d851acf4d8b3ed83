#include "integrate.h"

#include <hotlease/function.h>

HOTLEASE_FUNCTION(integrate_pi);
HOTLEASE_IDEMPOTENT(integrate_pi);

std::int32_t integrate_pi(hotlease_context*, const void* in, std::uint64_t size, void* out,
                          std::uint64_t capacity, std::uint64_t* produced)
{
    if (size != sizeof(steps) || capacity < sizeof(double))
        return hotlease_fail(1, "expects one `steps`, and room for one number", out, capacity, produced);
    *static_cast<double*>(out) = integrate(*static_cast<const steps*>(in));
    *produced = sizeof(double);
    return 0;
}
