// hotlease/communicator.hpp: message passing between functions, or any processes, from C++20. Header only,
// over communicator.h; link with -lhotlease (CMake: hotlease::hotlease).
//
//     hotlease::communicator all; // named, sized and ranked by the environment: HOTLEASE_COMM_NAME ...
//
//     const double sum = all.allreduce(local_sum(), hotlease::op::sum);
//     all.sendrecv(top, above, ghosts, below);               // spans, vectors, arrays; nothing is copied
//     auto pending = all.iallreduce(hotlease::inplace, gradients, hotlease::op::sum);
//     compute();
//     pending.wait();
//     all.finish();                                          // others have read everything
//
// Conventions
//  1. Ranks count from 0; counts, lengths and displacements are in elements. Tags are 0 unless given.
//  2. Elements are trivially copyable: numbers, bool, std::complex, enums, structs without pointers. All
//     ranks give the same type.
//  3. Collectives (barrier ... alltoallv, split, dup, grow) are called by all members, in the same order.
//  4. Memory is the caller's and is not copied. In a call that waits, the library uses it until the call returns, in
//     one that does not (`i...`) until the request has ended: see hotlease::request, whose destructor takes care of it.
//  5. Failures throw hotlease::communication_error, or a class derived from it (hotlease::member_lost, ...), which is a
//     hotlease::error. An exception of the program's operator is rethrown at its rank; other ranks get
//     hotlease::mismatch.
//  6. Several threads may use a communicator at once, one thread a request.
#ifndef HOTLEASE_COMMUNICATOR_HPP
#define HOTLEASE_COMMUNICATOR_HPP

#if !(__cplusplus >= 202002L && __has_include(<concepts>) && __has_include(<ranges>))
#error "communicator.hpp needs C++20: compile with -std=c++20 or later (communicator.h is for older C++, too)"
#else

#include <hotlease/comm/collectives.hpp>
#include <hotlease/comm/join.hpp>

#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>

namespace hotlease {

// A group of members that know each other by rank, and send each other messages. Can be moved, not copied: dup() makes
// another one.
//
// The destructor finishes, like finish(), without reporting errors. If an exception is leaving the block that made the
// object, it gives up instead, like abort(): the others learn at once that this member has failed.
class communicator : public detail::with_collectives {
public:
    // Meets the others at the rendezvous, and connects with all of them.
    explicit communicator(const communicator_options& options = {}) : communicator(detail::join(options)) {}
    // Uses the communicator of the ranks that run this function, from its context: see hotlease_context_communicator in
    // gang.h. The workers keep it, so this object neither finishes it nor gives it up.
    explicit communicator(const hotlease_context* context) : with_collectives(detail::of_gang(context)) {}

    // From comm/join.hpp: rank, size, name, finish, abort. From comm/messages.hpp: send, recv, recv_value, recv_vector,
    // sendrecv, probe, iprobe; isend, irecv, irecv_vector. From comm/collectives.hpp: barrier, broadcast, gather,
    // gatherv, scatter, scatterv, allgather, allgatherv, reduce, allreduce, reduce_scatter, reduce_scatter_block, scan,
    // exscan, alltoall, alltoallv; each also non-blocking, with an `i` before its name.

    // Makes a communicator of the members of one color, ranked by key and then by rank here. Members without a color get
    // std::nullopt.
    std::optional<communicator> split(std::optional<std::uint32_t> color, std::int64_t key = 0) const
    {
        const std::int64_t number = color ? std::int64_t{*color} : HOTLEASE_COMM_NONE;
        hotlease_comm* part = made<hotlease_comm_split>(number, key);
        return part == nullptr ? std::nullopt : std::optional(communicator(part));
    }
    // Makes a communicator of the same members, with separate messages and collectives.
    communicator dup() const { return communicator(made<hotlease_comm_dup>()); }
    // Makes a communicator of the remaining members, over new connections; called by all of them, in any state of this
    // communicator.
    communicator shrink() const { return communicator(made<hotlease_comm_shrink>()); }
    // Makes a communicator of these members, followed by `joining` new ones, over new connections. The new ones join as
    // `newcomer`, by the same name, with the size that it grows to.
    communicator grow(std::uint32_t joining) const { return communicator(made<hotlease_comm_grow>(joining)); }

private:
    explicit communicator(hotlease_comm* handle) : with_collectives(handle) {}

    template <auto Function, class... Arguments>
    hotlease_comm* made(Arguments... arguments) const
    {
        hotlease_comm* place = nullptr;
        run<Function>(std::tuple(arguments..., &place));
        return place;
    }
};

// Sets the source location of this thread, for errors of checked mode: `hotlease::at();` before a collective, or a
// phase of them.
inline void at(const std::source_location& place = std::source_location::current())
{
    hotlease_comm_at((place.file_name() + (':' + std::to_string(place.line()))).c_str());
}

} // namespace hotlease

#endif
#endif
