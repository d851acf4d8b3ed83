// Requests: operations that run while the program does something else. Included by hotlease/communicator.hpp.
#ifndef HOTLEASE_COMM_REQUEST_HPP
#define HOTLEASE_COMM_REQUEST_HPP

#include <hotlease/comm/datatype.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hotlease {

// Description of a message that was received, or that can be received.
struct message {
    std::uint32_t source; // rank of the sender
    std::uint32_t tag;    // tag of the sender
    std::uint64_t bytes;

    // Number of elements; throws if the message is not a whole number of elements.
    template <plain T>
    std::size_t count() const
    {
        if (bytes % sizeof(T) != 0)
            throw communication_error(kind::invalid_argument, "the message of rank " + std::to_string(source) +
                                                                  " has " + std::to_string(bytes) +
                                                                  " bytes, which is no whole number of " +
                                                                  std::to_string(sizeof(T)) + "-byte elements");
        return static_cast<std::size_t>(bytes / sizeof(T));
    }
};

namespace detail {

class with_handle;

inline message message_of(const hotlease_comm_message& from)
{
    return {from.source, from.tag, from.size};
}

// Memory that a request owns until it ends, and the result that it then returns.
template <class Result>
struct kept { // one value
    std::unique_ptr<Result> value;
    Result taken(const hotlease_comm_message&) { return *value; }
};
template <>
struct kept<void> {
    void taken(const hotlease_comm_message&) {}
};
template <>
struct kept<message> {
    message taken(const hotlease_comm_message& from) { return message_of(from); }
};
template <class T>
struct kept<std::vector<T>> {
    std::vector<T> values; // the elements stay at their address when this object is moved
    bool is_received = false;
    std::vector<T> taken(const hotlease_comm_message& from)
    {
        if (is_received)
            values.resize(message_of(from).count<T>());
        return std::move(values);
    }
};

} // namespace detail

// A send, a receive or a collective that was started. `Result` is the type that wait() returns. It is void if the
// memory is the caller's, hotlease::message for a receive into the caller's memory, and else a value or a std::vector,
// which the request owns until wait() returns it.
//
// The caller's memory must outlive the request; after its end, a request never accesses the memory. A request that is
// destroyed before the operation has ended cancels the operation if possible (a receive without a matching message, a
// send that has not started), and else waits for the end. If an exception is leaving the block that started the
// request, the request does not wait, but takes the memory back. Then the operations of other members that depend on it
// fail, too, instead of waiting for this member, which does something else.
template <class Result = void>
class [[nodiscard]] request {
public:
    request() = default;
    request(request&&) noexcept = default;
    request& operator=(request&& other) noexcept
    {
        if (this != &other) {
            settle();
            handle_ = std::move(other.handle_);
            kept_ = std::move(other.kept_);
            failure_ = std::move(other.failure_);
            unwinding_ = other.unwinding_;
        }
        return *this;
    }
    ~request() { settle(); }

    // Whether wait() may be called: the request has an operation whose result was not taken yet.
    bool valid() const noexcept { return handle_ != nullptr; }
    // Whether the operation has ended, so that wait() returns at once. Makes progress.
    bool test() { return hotlease_comm_test(handle_.get()) != 0; }
    // Cancels the operation if possible; returns whether it was cancelled. If so, wait() throws hotlease::cancelled.
    bool cancel() { return hotlease_comm_cancel(handle_.get()) != 0; }

    // Waits until the operation has ended; throws if it failed. If the program's operator threw an exception in a
    // collective, throws this exception. The request is not valid afterwards.
    Result wait()
    {
        detail::demand(valid(), "request: it has no operation, was waited for already, or moved from");
        hotlease_comm_message from{};
        detail::communicate(
            [&](hotlease_error** failure) { return hotlease_comm_wait(handle_.release(), &from, failure); },
            failure_.get());
        return kept_.taken(from);
    }

private:
    friend class detail::with_handle;
    template <class Other>
    friend std::optional<std::size_t> wait_any(std::span<const request<Other>> requests);
    request(hotlease_comm_request* handle, detail::kept<Result> kept, std::shared_ptr<detail::thrown> failure)
        : kept_(std::move(kept)), handle_(handle), failure_(std::move(failure))
    {
    }
    void settle() noexcept
    {
        if (handle_ && !test() && !cancel() && std::uncaught_exceptions() <= unwinding_)
            hotlease_comm_wait(handle_.release(), nullptr, nullptr);
        handle_.reset();
    }

    detail::kept<Result> kept_{}; // freed after the handle
    detail::unique<hotlease_comm_request, hotlease_comm_request_free> handle_;
    std::shared_ptr<detail::thrown> failure_;
    int unwinding_ = std::uncaught_exceptions();
};

// Waits for all requests; when all have ended, throws the first failure.
template <class Result>
void wait_all(std::span<request<Result>> requests)
{
    std::exception_ptr first;
    for (auto& each : requests)
        try {
            if (each.valid())
                each.wait();
        } catch (...) {
            if (!first)
                first = std::current_exception();
        }
    if (first)
        std::rethrow_exception(first);
}
template <class Result>
void wait_all(std::vector<request<Result>>& requests)
{
    wait_all(std::span(requests));
}

// Waits until a request has ended; returns the index of the first ended request, for which wait() returns at once.
// Requests that are not valid are skipped; returns std::nullopt if no request is valid.
template <class Result>
std::optional<std::size_t> wait_any(std::span<const request<Result>> requests)
{
    std::vector<hotlease_comm_request*> handles;
    handles.reserve(requests.size());
    for (const auto& each : requests)
        handles.push_back(each.handle_.get());
    std::size_t index = 0;
    detail::communicate([&](hotlease_error** failure) {
        return hotlease_comm_wait_any(handles.data(), handles.size(), &index, failure);
    });
    return index < handles.size() ? std::optional(index) : std::nullopt;
}
template <class Result>
std::optional<std::size_t> wait_any(const std::vector<request<Result>>& requests)
{
    return wait_any(std::span(requests));
}

} // namespace hotlease

#endif
