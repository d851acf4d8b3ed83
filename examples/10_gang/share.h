// Result of a rank.
#include <cstdint>

struct share {
    std::uint32_t rank;
    double part;
    double sum;
};
