// An MPI program in which every rank leases a worker and shares its loop with it.
//
//     mpirun -n 2 ./mpi_pi
//
// With more ranks than free cores, some ranks wait until other ranks give their workers back.
//
// The six lines marked with (+) are all that hotlease adds to the MPI program.

#include "integrate.h"

#include <hotlease/hotlease.hpp> // (+)
#include <mpi.h>

#include <chrono>
#include <cmath>
#include <cstdio>

static double part_of_this_rank(int rank, int ranks, const char* library)
{
    constexpr std::uint64_t count = 40'000'000;
    const auto share = count / static_cast<std::uint64_t>(ranks);
    const std::uint64_t begin = share * static_cast<std::uint64_t>(rank);
    const std::uint64_t end = rank + 1 == ranks ? count : begin + share;
    const std::uint64_t middle = begin + (end - begin) / 2;

    const hotlease::options options{.patience = std::chrono::seconds(60)};             // (+)
    hotlease::invoker invoker{hotlease::code{library}, options};                       // (+)
    const auto integrate_pi = invoker.function("integrate_pi");                        // (+)
    auto remote = integrate_pi.submit_value<double>(steps{begin, middle, count});      // (+)
    const double local = integrate(steps{middle, end, count});
    return local + remote.get();                                                       // (+)
}

int main(int argc, char** argv)
{
    MPI_Init(&argc, &argv);
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    try {
        const double part = part_of_this_rank(rank, ranks, argc > 1 ? argv[1] : "libmpi_pi_functions.so");
        double pi = 0;
        MPI_Reduce(&part, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0)
            std::printf("%d ranks with a worker each: pi is %.12f, off by %.1e\n", ranks, pi,
                        std::fabs(pi - M_PI));
    } catch (const hotlease::error& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        MPI_Abort(MPI_COMM_WORLD, 1); // otherwise the other ranks would wait for this rank for ever
    }
    MPI_Finalize();
}
