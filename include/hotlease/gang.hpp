// hotlease/gang.hpp: functions that run on several workers at the same time, and send each other messages, from C++20.
// For callers and for authors of functions. Header only, over gang.h. Link programs and function libraries with
// -lhotlease (CMake: hotlease::hotlease).
//
//     // The function.
//     HOTLEASE_FUNCTION(total)
//     {
//         return hotlease::on_gang(context, out, capacity, produced, [&](const hotlease::communicator& all) {
//             const double sum = all.allreduce(*static_cast<const double*>(in), hotlease::op::sum);
//             return hotlease::give(sum, out, capacity);
//         });
//     }
//
//     // The program.
//     hotlease::gang gang{hotlease::code{"libtotal.so"}, {.workers = 4}};
//     for (double sum : gang.call_value<double>("total", 1.5)) ...
//
// Conventions: the conventions of hotlease.hpp and communicator.hpp, and the last two conventions of gang.h.
#ifndef HOTLEASE_GANG_HPP
#define HOTLEASE_GANG_HPP

#if !(__cplusplus >= 202002L && __has_include(<concepts>) && __has_include(<ranges>))
#error "gang.hpp needs C++20: compile with -std=c++20 or later (gang.h is for older C++, too)"
#else

#include <hotlease/communicator.hpp>
#include <hotlease/gang.h>
#include <hotlease/hotlease.hpp>

#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hotlease {

// ---- For callers of functions -------------------------------------------------------------------------

// Failure of a call on a gang: what(), kind(), code() and so on describe the rank that failed by itself. rank() is the
// number of this rank, or no value if no function was called.
using gang_error = communication_error;

// A group of workers that run a function at the same time, one rank each: all of them, or none. Can be moved; calls of
// several threads run one after another. The lease ends with this object, unless end() ended it before.
class gang {
public:
    // Leases options.workers times options.slots ranks. `address`: the address of this host at which the workers' hosts
    // reach this program; empty: the address from which this host reaches the manager.
    explicit gang(const code& code, const options& options = {}, const std::string& address = {})
        : reply_bytes_(options.reply_bytes)
    {
        const hotlease_options in_c = detail::to_c(options);
        detail::alive(code.handle(), "hotlease::code was moved from");
        hotlease_gang* leased = nullptr;
        detail::communicate([&](hotlease_error** failure) {
            return hotlease_gang_lease(code.handle(), &in_c, address.empty() ? nullptr : address.c_str(), &leased,
                                       failure);
        });
        handle_.reset(leased);
    }

    std::uint32_t ranks() const noexcept { return hotlease_gang_ranks(handle_.get()); }

    // Calls a function at all ranks with the same values; returns the output of each rank, in the order of ranks. An
    // output has at most `room` elements, by default as many as fit into the reply_bytes of the options.
    template <plain R, plain_range In>
    std::vector<std::vector<R>> call(const std::string& function, const In& in, std::size_t room = 0) const
    {
        const std::size_t most = room > 0 ? room : reply_bytes_ / sizeof(R);
        if (most > SIZE_MAX / sizeof(R) / (ranks() + 1))
            throw std::length_error("hotlease::gang::call: too many elements");
        std::vector<R> all(ranks() * most);
        const std::vector<std::size_t> bytes =
            run(function, std::ranges::data(in), std::ranges::size(in) * sizeof *std::ranges::data(in), all.data(),
                most * sizeof(R));
        std::vector<std::vector<R>> results;
        for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
            const R* first = all.data() + rank * most;
            results.emplace_back(first, first + detail::elements<R>(bytes[rank]));
        }
        return results;
    }
    // Calls a function at all ranks with the same value; returns one R for each rank.
    template <plain R, plain T>
    std::vector<R> call_value(const std::string& function, const T& in) const
    {
        std::vector<R> all(ranks());
        for (const std::size_t bytes : run(function, &in, sizeof in, all.data(), sizeof(R)))
            if (bytes != sizeof(R))
                throw error(kind::function_failed, ran::yes,
                            "a rank wrote " + std::to_string(bytes) + " bytes where one value of " +
                                std::to_string(sizeof(R)) + " was expected; is this its result type?");
        return all;
    }

    // Releases the workers; later calls fail with kind::lease_ended.
    void end()
    {
        alive();
        detail::communicate(
            [&](hotlease_error** failure) { return hotlease_gang_end(handle_.get(), nullptr, failure); });
    }
    const hotlease_gang* handle() const noexcept { return handle_.get(); }

private:
    std::vector<std::size_t> run(const std::string& function, const void* in, std::size_t in_bytes, void* out,
                                 std::size_t room) const
    {
        alive();
        std::vector<std::size_t> bytes(ranks());
        detail::communicate([&](hotlease_error** failure) {
            return hotlease_gang_call(handle_.get(), function.c_str(), in, in_bytes, out, room, bytes.data(),
                                      failure);
        });
        return bytes;
    }
    void alive() const { detail::alive(handle_.get(), "hotlease::gang was moved from"); }

    detail::unique<hotlease_gang, hotlease_gang_free> handle_;
    std::size_t reply_bytes_;
};

// ---- For authors of functions -------------------------------------------------------------------------

// Writes one value as a function's output, for on_gang; if the value does not fit, the caller gets an error with its
// size.
template <plain R>
std::uint64_t give(const R& value, void* out, std::uint64_t capacity)
{
    if (capacity >= sizeof value)
        std::memcpy(out, &value, sizeof value);
    return sizeof value;
}

// Runs the body of a function with the communicator of its gang, and returns the function's return value. The body
// returns the number of bytes written. An exception of the body becomes the function's error at this rank, and
// operations of other ranks on the communicator fail.
template <class Body>
std::int32_t on_gang(const hotlease_context* context, void* out, std::uint64_t capacity, std::uint64_t* produced,
                     Body&& body) noexcept
{
    try {
        const communicator all(context);
        *produced = std::forward<Body>(body)(all);
        return 0;
    } catch (const error& failure) {
        // By this number the caller finds the rank that failed first.
        const std::int32_t code = static_cast<std::int32_t>(failure.kind());
        return hotlease_fail(code, failure.what(), out, capacity, produced);
    } catch (const std::exception& failure) {
        return hotlease_fail(HOTLEASE_FUNCTION_FAILED, failure.what(), out, capacity, produced);
    } catch (...) {
        return hotlease_fail(HOTLEASE_FUNCTION_FAILED, "an exception of no known type", out, capacity, produced);
    }
}

} // namespace hotlease

#endif
#endif
