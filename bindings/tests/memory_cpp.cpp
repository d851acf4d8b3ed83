// memory.hpp, against a running platform.

#include <hotlease/memory.hpp>

#include "check.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

int main()
{
    hotlease::memory memory{1 << 20, {.nodes = 2, .stripe_bytes = 4096, .lease = {.label = "memory_cpp"}}};
    CHECK(memory.size() == 1 << 20);
    CHECK(memory.transport() == "shm");
    const std::vector<double> out(20000, 0.5);
    memory.write(8, out);
    std::array<double, 3> some{};
    memory.read(0, some);
    CHECK(some[0] == 0 && some[1] == 0.5 && some[2] == 0.5);
    std::vector<double> in(20000);
    hotlease::memory_transfer read = memory.begin_read(8, in);
    hotlease::memory_transfer moved = std::move(read);
    moved.wait();
    moved.wait();
    CHECK(in == out);
    {
        const std::string text(100000, 'x');
        const hotlease::memory_transfer written = memory.begin_write(0, text); // its destructor waits
    }
    memory.flush();
    std::string text(100000, 'y');
    memory.read(0, text);
    CHECK(text == std::string(100000, 'x'));
    try {
        memory.read(1 << 20, some);
        CHECK(!"read past the end");
    } catch (const hotlease::error& error) {
        CHECK(error.kind() == hotlease::kind::invalid_argument && error.ran() == hotlease::ran::no);
    }
    hotlease::memory other = std::move(memory);
    CHECK(other.deallocate().count() > 0);
    try {
        other.deallocate();
        CHECK(!"given back twice");
    } catch (const hotlease::error& error) {
        CHECK(error.kind() == hotlease::kind::invalid_argument);
    }
    return checks_done();
}
