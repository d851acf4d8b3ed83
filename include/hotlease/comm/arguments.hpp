// Arguments of collectives, checked and converted for communicator.h. Included by hotlease/communicator.hpp.
#ifndef HOTLEASE_COMM_ARGUMENTS_HPP
#define HOTLEASE_COMM_ARGUMENTS_HPP

#include <hotlease/comm/messages.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>

namespace hotlease::detail {

// Counts or displacements of blocks, for C: one entry for each member, or no entries.
using sizes = std::span<const std::size_t>;

// Checks that there is a block for each member, and that all blocks are inside the memory of `room` elements;
// `otherwise`: text of the error.
inline void fit(std::size_t room, sizes counts, sizes displacements, std::uint32_t members,
                const char* otherwise)
{
    demand(counts.size() == members && (displacements.empty() || displacements.size() == members), otherwise);
    std::size_t next = 0;
    for (std::size_t i = 0; i < members; ++i) {
        const std::size_t start = displacements.empty() ? next : displacements[i];
        demand(counts[i] <= room && start <= room - counts[i], otherwise);
        next = start + counts[i];
    }
}

// Checks that the memory has room for a block of `count` elements for each member; `otherwise`: text of the error.
inline void fit(std::size_t room, std::size_t count, std::uint32_t members, const char* otherwise)
{
    demand(count <= room / members, otherwise);
}

inline const std::size_t* start(sizes given)
{
    return given.empty() ? nullptr : given.data();
}

// Builds the arguments of collectives. In C++ memory has a length, so memory that is too short is rejected here, before
// the call in C.
class with_arguments : public with_messages {
protected:
    using with_messages::with_messages;

    template <class Range>
    auto broadcast_of(Range& values, std::uint32_t root) const
    {
        return std::tuple(output(values), length(values), datatype_of<value_of<Range>>, root);
    }

    // Number of elements that this rank contributes: one block of the output if the call is in place.
    template <class In, class Out>
    std::size_t block(const In& values, const Out& into) const
    {
        if constexpr (std::same_as<In, inplace_t>)
            return length(into) / members();
        else
            return length(values);
    }

    template <class In, class Out>
    auto gather_of(const In& values, Out& into, std::uint32_t root) const
    {
        const std::size_t count = block(values, into);
        if (rank() == root)
            fit(length(into), count, members(),
                "communicator::gather: `into` has no room for the values of all ranks");
        return std::tuple(input(values), output(into), count, datatype_of<common<In, Out>>, root);
    }

    template <class In, class Out>
    auto gatherv_of(const In& values, Out& into, sizes counts, std::uint32_t root, sizes displacements) const
    {
        if (rank() == root)
            fit(length(into), counts, displacements, members(),
                "communicator::gatherv: `into` has no room for the values of all ranks, or not every rank has "
                "a count "
                "and a displacement");
        std::size_t count = 0;
        if constexpr (!std::same_as<In, inplace_t>)
            count = length(values);
        return std::tuple(input(values), count, output(into), start(counts), start(displacements),
                          datatype_of<common<In, Out>>, root);
    }

    template <class In, class Out>
    auto scatter_of(const In& values, Out& into, std::uint32_t root) const
    {
        const std::size_t count = block(into, values);
        if (rank() == root)
            fit(length(values), count, members(),
                "communicator::scatter: there are fewer values than `into` of all ranks takes");
        return std::tuple(input(values), output(into), count, datatype_of<common<In, Out>>, root);
    }

    template <class In, class Out>
    auto scatterv_of(const In& values, sizes counts, Out& into, std::uint32_t root, sizes displacements) const
    {
        if (rank() == root)
            fit(length(values), counts, displacements, members(),
                "communicator::scatterv: there are fewer values than ranks get, or not every rank has a count "
                "and a "
                "displacement");
        std::size_t count = 0;
        if constexpr (!std::same_as<std::remove_cv_t<Out>, inplace_t>)
            count = length(into);
        return std::tuple(input(values), start(counts), start(displacements), output(into), count,
                          datatype_of<common<In, Out>>, root);
    }

    template <class In, class Out>
    auto allgather_of(const In& values, Out& into) const
    {
        const std::size_t count = block(values, into);
        fit(length(into), count, members(),
            "communicator::allgather: `into` has no room for the values of all ranks");
        return std::tuple(input(values), output(into), count, datatype_of<common<In, Out>>);
    }

    template <class In, class Out>
    auto allgatherv_of(const In& values, Out& into, sizes counts, sizes displacements) const
    {
        fit(length(into), counts, displacements, members(),
            "communicator::allgatherv: `into` has no room for the values of all ranks, or not every rank has a "
            "count and "
            "a displacement");
        if constexpr (!std::same_as<In, inplace_t>)
            demand(
                length(values) == counts[rank()],
                "communicator::allgatherv: this rank gives another number of values than `counts` says");
        return std::tuple(input(values), output(into), start(counts), start(displacements),
                          datatype_of<common<In, Out>>);
    }

    // Output has as many elements as input.
    template <class In, class Out, class Reducer>
    auto same_length(const In& values, Out&& into, const Reducer& op) const
    {
        const std::size_t count = reduced(values, into);
        demand(length(into) >= count, "communicator: `into` has less room than there are values to reduce");
        return std::tuple(input(values), output(into), count, datatype_of<common<In, Out>>, op.handle());
    }

    template <class In, class Out, class Reducer>
    auto reduce_of(const In& values, Out& into, const Reducer& op, std::uint32_t root) const
    {
        const std::size_t count = reduced(values, into);
        demand(rank() != root || length(into) >= count,
               "communicator::reduce: `into` has less room than there are values to reduce");
        return std::tuple(input(values), output(into), count, datatype_of<common<In, Out>>, op.handle(), root);
    }

    template <class In, class Out, class Reducer>
    auto reduce_scatter_of(const In& values, Out& into, sizes counts, const Reducer& op) const
    {
        constexpr const char* otherwise =
            "communicator::reduce_scatter: there are fewer values than ranks get, `into` has no "
            "room for this rank's, or not every rank has a count";
        fit(reduced(values, into), counts, {}, members(), otherwise);
        demand(length(into) >= counts[rank()], otherwise);
        return std::tuple(input(values), output(into), start(counts), datatype_of<common<In, Out>>,
                          op.handle());
    }

    template <class In, class Out, class Reducer>
    auto reduce_scatter_block_of(const In& values, Out& into, const Reducer& op) const
    {
        const std::size_t count = reduced(values, into) / members();
        demand(count * members() == reduced(values, into) && length(into) >= count,
               "communicator::reduce_scatter_block: values are no multiple of the number of members, or `into` "
               "has no room for "
               "this rank's");
        return std::tuple(input(values), output(into), count, datatype_of<common<In, Out>>, op.handle());
    }

    template <class In, class Out>
    auto alltoall_of(const In& values, Out& into) const
    {
        const std::size_t values_count = reduced(values, into);
        const std::size_t count = values_count / members();
        demand(count * members() == values_count && length(into) >= values_count,
               "communicator::alltoall: values are no multiple of the number of members, or `into` has less "
               "room than that");
        return std::tuple(input(values), output(into), count, datatype_of<common<In, Out>>);
    }

    template <class In, class Out>
    auto alltoallv_of(const In& values, sizes sent, Out& into, sizes received, sizes sent_displacements,
                      sizes received_displacements) const
    {
        constexpr const char* otherwise =
            "communicator::alltoallv: there are fewer values than go to all ranks, `into` has no "
            "room for the received values, or not every rank has a count and a displacement";
        if constexpr (!std::same_as<In, inplace_t>)
            fit(length(values), sent, sent_displacements, members(), otherwise);
        fit(length(into), received, received_displacements, members(), otherwise);
        return std::tuple(input(values), start(sent), start(sent_displacements), output(into), start(received),
                          start(received_displacements), datatype_of<common<In, Out>>);
    }

private:
    // Number of members; 1 if the communicator has finished, to avoid divisions by 0: the call itself then fails.
    std::uint32_t members() const noexcept { return size() > 0 ? size() : 1; }

    // Number of elements that this rank contributes to a reduction or exchange.
    template <class In, class Out>
    static std::size_t reduced(const In& values, const Out& into)
    {
        if constexpr (std::same_as<In, inplace_t>)
            return length(into);
        else
            return length(values);
    }
};

} // namespace hotlease::detail

#endif
