// What a rank gives back.
#include <cstdint>

struct share {
    std::uint32_t rank;
    double part;
    double sum;
};
