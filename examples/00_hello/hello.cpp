// Leases one slot of a worker and calls two functions on it.
//
// Run it where it was built, or name the function library: hello path/to/libhello_functions.so

#include <hotlease/hotlease.hpp>

#include <cstdio>
#include <string_view>
#include <unistd.h>
#include <vector>

int main(int argc, char** argv)
try {
    // The functions: a shared library, read as a file.
    const hotlease::code code{argc > 1 ? argv[1] : "libhello_functions.so"};

    // The lease: a worker process with one slot, on a core of its own. The library is loaded into the worker.
    // All this takes a few milliseconds, and is done once.
    hotlease::invoker invoker{code};

    // A call: about as fast as two cores can exchange a few bytes.
    const hotlease::function add = invoker.function("add");
    const std::vector<double> sum = add.call<double>({1.0, 2.0, 39.0});
    std::printf("1 + 2 + 39 = %g\n", sum.at(0));

    // Text is passed and returned like any other range of plain values.
    const std::vector<char> greeting = invoker.function("greet").call<char>(std::string_view("world"));
    std::printf("%.*s\n", static_cast<int>(greeting.size()), greeting.data());
    std::printf("this is process %d\n", static_cast<int>(getpid()));

    // Gives the core back. (The destructor would also do this, but it cannot report the usage.)
    const hotlease::usage used = invoker.deallocate();
    std::printf("%llu calls\n", static_cast<unsigned long long>(used.invocations));
} catch (const hotlease::error& error) {
    std::fprintf(stderr, "hello: %s\n", error.what());
    return 1;
}
