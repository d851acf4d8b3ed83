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
//  4. Memory is the caller's and is not copied. In a call that waits, the library uses it until the call returns. In a
//     call that does not wait (`i...`), it uses the memory until the request has ended. The destructor of
//     hotlease::request ensures that.
//  5. Failures throw hotlease::communication_error, or a class derived from it (hotlease::member_lost, ...); it is
//     derived from hotlease::error. An exception of the program's operator is rethrown at the rank where the operator
//     threw it; other ranks get hotlease::mismatch.
//  6. Several threads may use a communicator at once, but only one thread a request.
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

// A group of members that send each other messages, and are addressed by rank. Can be moved, not copied: dup() makes
// another communicator of the same members.
//
// The destructor finishes, like finish(), without reporting errors. If an exception is leaving the block that made the
// object, the destructor aborts instead, like abort(): the other members learn at once that this member has failed.
class communicator : public detail::with_collectives {
public:
    // Meets the other members at the rendezvous, and connects with all of them.
    explicit communicator(const communicator_options& options = {}) : communicator(detail::join(options)) {}
    // Uses the communicator of the ranks that run this function, from its context: see hotlease_context_communicator in
    // gang.h. The workers own the communicator, so this object neither finishes it nor gives it up.
    explicit communicator(const hotlease_context* context) : with_collectives(detail::of_gang(context)) {}

    // From comm/join.hpp: rank, size, name, finish, abort. From comm/messages.hpp: send, recv, recv_value, recv_vector,
    // sendrecv, probe, iprobe; isend, irecv, irecv_vector. From comm/collectives.hpp: barrier, broadcast, gather,
    // gatherv, scatter, scatterv, allgather, allgatherv, reduce, allreduce, reduce_scatter, reduce_scatter_block, scan,
    // exscan, alltoall, alltoallv; each also non-blocking, with an `i` before its name.

    // Makes a communicator of the members with the same color, ranked by key and then by their rank in this
    // communicator. Members without a color get std::nullopt.
    std::optional<communicator> split(std::optional<std::uint32_t> color, std::int64_t key = 0) const
    {
        const std::int64_t number = color ? std::int64_t{*color} : HOTLEASE_COMM_NONE;
        hotlease_comm* part = made<hotlease_comm_split>(number, key);
        return part == nullptr ? std::nullopt : std::optional(communicator(part));
    }
    // Makes a communicator of the same members, with separate messages and collectives.
    communicator dup() const { return communicator(made<hotlease_comm_dup>()); }
    // Makes a communicator of the remaining members, over new connections. All remaining members call it, in any state
    // of this communicator.
    communicator shrink() const { return communicator(made<hotlease_comm_shrink>()); }
    // Makes a communicator of the present members, followed by `joining` new members, over new connections. New members
    // join with `newcomer`, the same name, and the new size.
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

// Sets the source location that errors of checked mode name for this thread: write `hotlease::at();` before a
// collective, or before several of them.
inline void at(const std::source_location& place = std::source_location::current())
{
    hotlease_comm_at((place.file_name() + (':' + std::to_string(place.line()))).c_str());
}

} // namespace hotlease

#endif
#endif
