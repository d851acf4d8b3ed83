// Messages from one member to another. Included by hotlease/communicator.hpp.
#ifndef HOTLEASE_COMM_MESSAGES_HPP
#define HOTLEASE_COMM_MESSAGES_HPP

#include <hotlease/comm/join.hpp>
#include <hotlease/comm/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace hotlease::detail {

// Messages of hotlease::communicator.
class with_messages : public with_handle {
public:
    // As a source or a tag: any source, or any tag.
    static constexpr std::int64_t any = HOTLEASE_COMM_ANY;

    // Sends, and returns when the memory may be used again.
    template <plain_range Range>
    void send(const Range& values, std::uint32_t to, std::uint32_t tag = 0) const
    {
        run<hotlease_comm_send>(std::tuple_cat(bytes_of(values), std::tuple(to, tag)));
    }
    template <single T>
    void send(const T& value, std::uint32_t to, std::uint32_t tag = 0) const
    {
        send(std::span(&value, 1), to, tag);
    }

    // Receives the first message with that source and tag. Throws hotlease::truncated if the message is too long; it
    // can still be received into larger memory.
    template <writable Range>
    message recv(Range&& into, std::int64_t from = any, std::int64_t tag = any) const
    {
        hotlease_comm_message got{};
        run<hotlease_comm_recv>(std::tuple_cat(room_of(into), std::tuple(from, tag, &got)));
        return detail::message_of(got);
    }
    template <single T>
    message recv(T& into, std::int64_t from = any, std::int64_t tag = any) const
    {
        return recv(std::span(&into, 1), from, tag);
    }
    // Receives one element; throws if the message has another length.
    template <single T>
    T recv_value(std::int64_t from = any, std::int64_t tag = any) const
    {
        T value{};
        const message got = recv(value, from, tag);
        detail::demand(got.count<T>() == 1, "communicator::recv_value: the message is empty");
        return value;
    }
    // Receives any number of elements. (Do not call it while other threads receive with the same source and tag:
    // receive a known length instead.)
    template <single T>
    std::vector<T> recv_vector(std::int64_t from = any, std::int64_t tag = any) const
    {
        const message coming = probe(from, tag);
        std::vector<T> values(coming.count<T>());
        values.resize(recv(values, coming.source, coming.tag).template count<T>());
        return values;
    }

    // Sends and receives at the same time: two members can call it with each other, and all members in a ring.
    template <plain_range From, writable Into>
    message sendrecv(const From& values, std::uint32_t to, Into&& into, std::int64_t from = any,
                     std::uint32_t send_tag = 0, std::int64_t recv_tag = any) const
    {
        hotlease_comm_message got{};
        run<hotlease_comm_sendrecv>(std::tuple_cat(bytes_of(values), std::tuple(to, send_tag), room_of(into),
                                                   std::tuple(from, recv_tag, &got)));
        return detail::message_of(got);
    }

    // Describes the message that recv would receive. probe waits for the message; iprobe returns std::nullopt if there
    // is none.
    message probe(std::int64_t from = any, std::int64_t tag = any) const
    {
        hotlease_comm_message found{};
        run<hotlease_comm_probe>(std::tuple(from, tag, &found));
        return detail::message_of(found);
    }
    std::optional<message> iprobe(std::int64_t from = any, std::int64_t tag = any) const
    {
        hotlease_comm_message message{};
        int found = 0;
        run<hotlease_comm_iprobe>(std::tuple(from, tag, &found, &message));
        return found != 0 ? std::optional(detail::message_of(message)) : std::nullopt;
    }

    // Starts a send or receive. If a vector is moved in, the request owns the vector, and wait() returns it.
    template <plain_range Range>
        requires lasting<Range>
    request<> isend(Range&& values, std::uint32_t to, std::uint32_t tag = 0) const
    {
        return begin<hotlease_comm_isend>(std::tuple_cat(bytes_of(values), std::tuple(to, tag)), {});
    }
    template <single T>
    request<std::vector<T>> isend(std::vector<T>&& values, std::uint32_t to, std::uint32_t tag = 0) const
    {
        detail::kept<std::vector<T>> kept{std::move(values)};
        const auto arguments = std::tuple_cat(bytes_of(kept.values), std::tuple(to, tag));
        return begin<hotlease_comm_isend>(arguments, std::move(kept));
    }
    template <writable Range>
        requires lasting<Range>
    request<message> irecv(Range&& into, std::int64_t from = any, std::int64_t tag = any) const
    {
        return begin<hotlease_comm_irecv, message>(std::tuple_cat(room_of(into), std::tuple(from, tag)), {});
    }
    template <single T>
    request<message> irecv(T& into, std::int64_t from = any, std::int64_t tag = any) const
    {
        return irecv(std::span(&into, 1), from, tag);
    }
    // Starts to receive up to `count_max` elements, in memory of the request.
    template <single T>
    request<std::vector<T>> irecv_vector(std::size_t count_max, std::int64_t from = any,
                                         std::int64_t tag = any) const
    {
        detail::kept<std::vector<T>> kept{std::vector<T>(count_max), true};
        const auto arguments = std::tuple_cat(room_of(kept.values), std::tuple(from, tag));
        return begin<hotlease_comm_irecv>(arguments, std::move(kept));
    }

protected:
    using with_handle::with_handle;

private:
    template <class Range>
    static auto bytes_of(const Range& values)
    {
        (void)datatype_of<value_of<Range>>; // reports types that cannot be sent
        return std::tuple(input(values), length(values) * sizeof(value_of<Range>));
    }
    template <class Range>
    static auto room_of(Range& into)
    {
        (void)datatype_of<value_of<Range>>;
        return std::tuple(output(into), length(into) * sizeof(value_of<Range>));
    }
};

} // namespace hotlease::detail

#endif
