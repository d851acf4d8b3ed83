// Collectives: operations of all members together. Included by hotlease/communicator.hpp.
#ifndef HOTLEASE_COMM_COLLECTIVES_HPP
#define HOTLEASE_COMM_COLLECTIVES_HPP

#include <hotlease/comm/arguments.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace hotlease::detail {

// Collectives of hotlease::communicator. All members make the same calls in the same order, with the same type, root
// and operator, and counts that match. `values` is this rank's contribution: a vector, array or span, or
// hotlease::inplace. `into` is the memory for this rank's result, and must be large enough. Ranks without a result may
// pass anything as `into`, an empty span for instance. Operators are those of hotlease::op, or functions of two
// elements: see hotlease::commutative.
//
// A call with an `i` before its name only starts the collective; its memory must outlive the request. A call without
// `i` waits. Calls that return a value or a std::vector need no memory of the caller.
class with_collectives : public with_arguments {
public:
    // Returns when all members have called barrier.
    void barrier() const { run<hotlease_comm_barrier>(std::tuple()); }
    request<> ibarrier() const { return begin<hotlease_comm_ibarrier>(std::tuple()); }

    // Copies the root's memory to all members.
    template <writable Range>
    void broadcast(Range&& values, std::uint32_t root = 0) const
    {
        run<hotlease_comm_broadcast>(broadcast_of(values, root));
    }
    template <single T>
    void broadcast(T& value, std::uint32_t root = 0) const
    {
        broadcast(std::span(&value, 1), root);
    }
    template <writable Range>
        requires lasting<Range>
    request<> ibroadcast(Range&& values, std::uint32_t root = 0) const
    {
        return begin<hotlease_comm_ibroadcast>(broadcast_of(values, root));
    }

    // Collects the values of all ranks in the root's `into`, in rank order; all ranks give the same number of values.
    template <given In, writable Out>
    void gather(const In& values, Out&& into, std::uint32_t root = 0) const
    {
        run<hotlease_comm_gather>(gather_of(values, into, root));
    }
    template <given In, writable Out>
        requires lasting<In> && lasting<Out>
    request<> igather(In&& values, Out&& into, std::uint32_t root = 0) const
    {
        return begin<hotlease_comm_igather>(gather_of(values, into, root));
    }
    // Returns a vector of all values at the root, and an empty vector at other ranks.
    template <plain_range In>
    std::vector<value_of<In>> gather(const In& values, std::uint32_t root = 0) const
    {
        std::vector<value_of<In>> into(rank() == root ? size() * length(values) : 0);
        gather(values, into, root);
        return into;
    }
    template <single T>
    std::vector<T> gather(const T& value, std::uint32_t root = 0) const
    {
        return gather(std::span(&value, 1), root);
    }

    // As gather, with `counts[i]` values of rank i at `displacements[i]`; without displacements, blocks follow one
    // another. Only the root's counts and displacements are used.
    template <given In, writable Out>
    void gatherv(const In& values, Out&& into, sizes counts, std::uint32_t root = 0,
                 sizes displacements = {}) const
    {
        run<hotlease_comm_gatherv>(gatherv_of(values, into, counts, root, displacements));
    }
    template <given In, writable Out>
        requires lasting<In> && lasting<Out>
    request<> igatherv(In&& values, Out&& into, sizes counts, std::uint32_t root = 0,
                       sizes displacements = {}) const
    {
        return begin<hotlease_comm_igatherv>(gatherv_of(values, into, counts, root, displacements));
    }
    // Returns a vector of all values at the root, and an empty vector at other ranks. The root first asks each rank for
    // its number of values.
    template <plain_range In>
    std::vector<value_of<In>> gatherv(const In& values, std::uint32_t root = 0) const
    {
        const std::vector<std::size_t> counts = gather(length(values), root);
        std::vector<value_of<In>> into(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
        gatherv(values, into, counts, root);
        return into;
    }

    // Sends block i of the root's values to `into` of rank i; all blocks have the same length. (With hotlease::inplace
    // as `into`, the root's own block stays in place.)
    template <plain_range In, class Out>
    void scatter(const In& values, Out&& into, std::uint32_t root = 0) const
    {
        run<hotlease_comm_scatter>(scatter_of(values, into, root));
    }
    template <plain_range In, class Out>
        requires lasting<In> && lasting<Out>
    request<> iscatter(In&& values, Out&& into, std::uint32_t root = 0) const
    {
        return begin<hotlease_comm_iscatter>(scatter_of(values, into, root));
    }
    // Returns value i of the root at rank i.
    template <plain_range In>
    value_of<In> scatter_value(const In& values, std::uint32_t root = 0) const
    {
        value_of<In> value{};
        scatter(values, std::span(&value, 1), root);
        return value;
    }

    // As scatter, with `counts[i]` values for rank i at `displacements[i]`; without displacements, blocks follow one
    // another. Only the root's counts and displacements are used.
    template <plain_range In, class Out>
    void scatterv(const In& values, sizes counts, Out&& into, std::uint32_t root = 0,
                  sizes displacements = {}) const
    {
        run<hotlease_comm_scatterv>(scatterv_of(values, counts, into, root, displacements));
    }
    template <plain_range In, class Out>
        requires lasting<In> && lasting<Out>
    request<> iscatterv(In&& values, sizes counts, Out&& into, std::uint32_t root = 0,
                        sizes displacements = {}) const
    {
        return begin<hotlease_comm_iscatterv>(scatterv_of(values, counts, into, root, displacements));
    }

    // Collects the values of all ranks in `into` at each rank, in rank order; all ranks give the same number of values.
    template <given In, writable Out>
    void allgather(const In& values, Out&& into) const
    {
        run<hotlease_comm_allgather>(allgather_of(values, into));
    }
    template <given In, writable Out>
        requires lasting<In> && lasting<Out>
    request<> iallgather(In&& values, Out&& into) const
    {
        return begin<hotlease_comm_iallgather>(allgather_of(values, into));
    }
    template <plain_range In>
    std::vector<value_of<In>> allgather(const In& values) const
    {
        std::vector<value_of<In>> into(size() * length(values));
        allgather(values, into);
        return into;
    }
    template <single T>
    std::vector<T> allgather(const T& value) const
    {
        return allgather(std::span(&value, 1));
    }
    template <single T>
    request<std::vector<T>> iallgather(const T& value) const
    {
        kept<std::vector<T>> own{std::vector<T>(size())};
        if (rank() < own.values.size())
            own.values[rank()] = value;
        const auto arguments = allgather_of(inplace, own.values);
        return begin<hotlease_comm_iallgather>(arguments, std::move(own));
    }

    // As allgather, with `counts[i]` values of rank i at `displacements[i]`; without displacements, blocks follow one
    // another.
    template <given In, writable Out>
    void allgatherv(const In& values, Out&& into, sizes counts, sizes displacements = {}) const
    {
        run<hotlease_comm_allgatherv>(allgatherv_of(values, into, counts, displacements));
    }
    template <given In, writable Out>
        requires lasting<In> && lasting<Out>
    request<> iallgatherv(In&& values, Out&& into, sizes counts, sizes displacements = {}) const
    {
        return begin<hotlease_comm_iallgatherv>(allgatherv_of(values, into, counts, displacements));
    }
    // Returns a vector of all values; each rank first asks the other ranks for their numbers of values.
    template <plain_range In>
    std::vector<value_of<In>> allgatherv(const In& values) const
    {
        const std::vector<std::size_t> counts = allgather(length(values));
        std::vector<value_of<In>> into(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
        allgatherv(values, into, counts);
        return into;
    }

    // Reduces the values of all ranks, element by element, to the root's `into`.
    template <given In, writable Out, class Op>
    void reduce(const In& values, Out&& into, const Op& by, std::uint32_t root = 0) const
    {
        const reducer<common<In, Out>> op(by);
        run<hotlease_comm_reduce>(reduce_of(values, into, op, root), op.failure().get());
    }
    template <given In, writable Out, class Op>
        requires lasting<In> && lasting<Out>
    request<> ireduce(In&& values, Out&& into, const Op& by, std::uint32_t root = 0) const
    {
        const reducer<common<In, Out>> op(by);
        return begin<hotlease_comm_ireduce>(reduce_of(values, into, op, root), {}, op.failure());
    }
    // Reduces one value of each rank at the root; returns std::nullopt at other ranks.
    template <single T, class Op>
    std::optional<T> reduce(const T& value, const Op& by, std::uint32_t root = 0) const
    {
        T into{};
        reduce(std::span(&value, 1), std::span(&into, 1), by, root);
        return rank() == root ? std::optional(into) : std::nullopt;
    }

    // As reduce, but each rank gets the result in `into`, bit for bit the same.
    template <given In, writable Out, class Op>
    void allreduce(const In& values, Out&& into, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        run<hotlease_comm_allreduce>(same_length(values, into, op), op.failure().get());
    }
    template <given In, writable Out, class Op>
        requires lasting<In> && lasting<Out>
    request<> iallreduce(In&& values, Out&& into, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        return begin<hotlease_comm_iallreduce>(same_length(values, into, op), {}, op.failure());
    }
    template <single T, class Op>
    T allreduce(const T& value, const Op& by) const
    {
        T into{};
        allreduce(std::span(&value, 1), std::span(&into, 1), by);
        return into;
    }
    template <plain_range In, class Op>
    std::vector<value_of<In>> allreduce(const In& values, const Op& by) const
    {
        std::vector<value_of<In>> into(length(values));
        allreduce(values, into, by);
        return into;
    }
    template <single T, class Op>
    request<T> iallreduce(const T& value, const Op& by) const
    {
        const reducer<T> op(by);
        kept<T> own{std::make_unique<T>(value)};
        const auto arguments = same_length(inplace, std::span(own.value.get(), 1), op);
        return begin<hotlease_comm_iallreduce>(arguments, std::move(own), op.failure());
    }

    // As reduce, but rank i gets block i of the result in `into`; the block has `counts[i]` elements. `values` has all
    // blocks, one after another. In place, `into` has all blocks before the call, and the rank's result at its
    // beginning afterwards.
    template <given In, writable Out, class Op>
    void reduce_scatter(const In& values, Out&& into, sizes counts, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        run<hotlease_comm_reduce_scatter>(reduce_scatter_of(values, into, counts, op), op.failure().get());
    }
    template <given In, writable Out, class Op>
        requires lasting<In> && lasting<Out>
    request<> ireduce_scatter(In&& values, Out&& into, sizes counts, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        const auto arguments = reduce_scatter_of(values, into, counts, op);
        return begin<hotlease_comm_ireduce_scatter>(arguments, {}, op.failure());
    }
    // As reduce_scatter, with blocks of equal length: the number of values is a multiple of the number of members.
    template <given In, writable Out, class Op>
    void reduce_scatter_block(const In& values, Out&& into, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        run<hotlease_comm_reduce_scatter_block>(reduce_scatter_block_of(values, into, op), op.failure().get());
    }
    template <given In, writable Out, class Op>
        requires lasting<In> && lasting<Out>
    request<> ireduce_scatter_block(In&& values, Out&& into, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        const auto arguments = reduce_scatter_block_of(values, into, op);
        return begin<hotlease_comm_ireduce_scatter_block>(arguments, {}, op.failure());
    }

    // Reduces the values of this rank and all ranks before it to `into`. exscan reduces only the values of the ranks
    // before this rank, and does not change `into` of rank 0.
    template <given In, writable Out, class Op>
    void scan(const In& values, Out&& into, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        run<hotlease_comm_scan>(same_length(values, into, op), op.failure().get());
    }
    template <given In, writable Out, class Op>
        requires lasting<In> && lasting<Out>
    request<> iscan(In&& values, Out&& into, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        return begin<hotlease_comm_iscan>(same_length(values, into, op), {}, op.failure());
    }
    template <single T, class Op>
    T scan(const T& value, const Op& by) const
    {
        T into{};
        scan(std::span(&value, 1), std::span(&into, 1), by);
        return into;
    }
    template <given In, writable Out, class Op>
    void exscan(const In& values, Out&& into, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        run<hotlease_comm_exscan>(same_length(values, into, op), op.failure().get());
    }
    template <given In, writable Out, class Op>
        requires lasting<In> && lasting<Out>
    request<> iexscan(In&& values, Out&& into, const Op& by) const
    {
        const reducer<common<In, Out>> op(by);
        return begin<hotlease_comm_iexscan>(same_length(values, into, op), {}, op.failure());
    }
    // exscan of one value; returns std::nullopt at rank 0.
    template <single T, class Op>
    std::optional<T> exscan(const T& value, const Op& by) const
    {
        T into{};
        exscan(std::span(&value, 1), std::span(&into, 1), by);
        return rank() > 0 ? std::optional(into) : std::nullopt;
    }

    // Sends block i of each rank's values to rank i, so that block j of `into` is from rank j; all blocks have the same
    // length.
    template <given In, writable Out>
    void alltoall(const In& values, Out&& into) const
    {
        run<hotlease_comm_alltoall>(alltoall_of(values, into));
    }
    template <given In, writable Out>
        requires lasting<In> && lasting<Out>
    request<> ialltoall(In&& values, Out&& into) const
    {
        return begin<hotlease_comm_ialltoall>(alltoall_of(values, into));
    }
    template <plain_range In>
    std::vector<value_of<In>> alltoall(const In& values) const
    {
        std::vector<value_of<In>> into(length(values));
        alltoall(values, into);
        return into;
    }

    // As alltoall, with blocks of any length: `sent[i]` values are sent to rank i, and `received[j]` values are
    // received from rank j. Without displacements, blocks follow one another. In place, `sent` is ignored.
    template <given In, writable Out>
    void alltoallv(const In& values, sizes sent, Out&& into, sizes received, sizes sent_displacements = {},
                   sizes received_displacements = {}) const
    {
        run<hotlease_comm_alltoallv>(
            alltoallv_of(values, sent, into, received, sent_displacements, received_displacements));
    }
    template <given In, writable Out>
        requires lasting<In> && lasting<Out>
    request<> ialltoallv(In&& values, sizes sent, Out&& into, sizes received, sizes sent_displacements = {},
                         sizes received_displacements = {}) const
    {
        return begin<hotlease_comm_ialltoallv>(
            alltoallv_of(values, sent, into, received, sent_displacements, received_displacements));
    }

protected:
    using with_arguments::with_arguments;
};

} // namespace hotlease::detail

#endif
