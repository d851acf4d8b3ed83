#include <hotlease/hotlease.hpp>

#include <cstdio>

int main(int, char** argv)
try {
    hotlease::invoker invoker{hotlease::code{argv[1]}};
    std::printf("3 times 14 is %d\n", invoker.function("triple").call_value<int>(14));
} catch (const hotlease::error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
