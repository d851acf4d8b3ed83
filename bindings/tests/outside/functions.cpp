#include <hotlease/function.h>

#include <cstdint>

HOTLEASE_PLAIN_FUNCTION(triple)
{
    for (std::uint32_t i = 0; i < size / sizeof(int); ++i)
        static_cast<int*>(out)[i] = 3 * static_cast<const int*>(in)[i];
    return size;
}
