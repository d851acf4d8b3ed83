// Temperatures of a metal plate with one hot edge, computed by several processes. Each process has some rows of the
// plate, and sends the rows at its borders to its neighbours (halo exchange). By an allreduce, all processes learn when
// the temperatures have settled.
//
// Every process is a member of one communicator, which environment variables describe:
//
//     export HOTLEASE_COMM_SECRET=$(openssl rand -hex 16) HOTLEASE_COMM_RENDEZVOUS=127.0.0.1:7072
//     hotlease comm rendezvous --listen $HOTLEASE_COMM_RENDEZVOUS &
//     export HOTLEASE_COMM_NAME=plate HOTLEASE_COMM_SIZE=4
//     ./heat & ./heat & ./heat & ./heat; kill %1
//
// Any number of members gives the same temperatures.

#include <hotlease/communicator.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

constexpr std::size_t width = 256, height = 256;
constexpr double tolerance = 1e-2;

static void settle(hotlease::communicator& all)
{
    const std::size_t rank = all.rank(), size = all.size();
    const std::size_t first = height * rank / size, rows = height * (rank + 1) / size - first;
    // This member's rows, and one more row on either side: a neighbour's row, or the plate's edge. The upper edge is
    // hot.
    std::vector<double> now((rows + 2) * width, 0.0);
    if (rank == 0)
        std::fill_n(now.begin(), width, 100.0);
    std::vector<double> next = now;
    const auto row = [&](std::size_t index) { return std::span(now).subspan(index * width, width); };

    int steps = 0;
    for (double change = 100; change > tolerance; ++steps) {
        // Sends and receives in both directions at once. Receives are started first, so that arriving rows are written
        // to their place directly.
        std::vector<hotlease::request<hotlease::message>> halos;
        std::vector<hotlease::request<>> borders;
        if (rank > 0) {
            halos.push_back(all.irecv(row(0), all.rank() - 1));
            borders.push_back(all.isend(row(1), all.rank() - 1));
        }
        if (rank + 1 < size) {
            halos.push_back(all.irecv(row(rows + 1), all.rank() + 1));
            borders.push_back(all.isend(row(rows), all.rank() + 1));
        }
        hotlease::wait_all(halos);

        double largest = 0;
        for (std::size_t y = 1; y <= rows; ++y)
            for (std::size_t x = 1; x + 1 < width; ++x) {
                const std::size_t i = y * width + x;
                next[i] = (now[i - 1] + now[i + 1] + now[i - width] + now[i + width]) / 4;
                largest = std::max(largest, std::abs(next[i] - now[i]));
            }
        hotlease::wait_all(borders); // before the rows that are being sent are overwritten
        std::copy(next.begin() + width, next.end() - width, now.begin() + width);
        change = all.allreduce(largest, hotlease::op::max);
    }

    const double heat = std::accumulate(now.begin() + width, now.end() - width, 0.0);
    const auto total = all.reduce(heat, hotlease::op::sum);
    if (total)
        std::printf("%zu members, settled after %d steps, %.3f degrees on average\n", size, steps,
                    *total / (width * height));
}

int main()
try {
    hotlease::communicator all; // meets the other members
    settle(all);
    all.finish();
} catch (const hotlease::error& error) {
    std::fprintf(stderr, "%s\n", error.what()); // what failed, at which rank, why, what to do next
    return 1;
}
