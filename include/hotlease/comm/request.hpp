// Operations that go on while the program does something else. Included by hotlease/communicator.hpp.
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

// What was received, or could be.
struct message {
    std::uint32_t source; // who sent it
    std::uint32_t tag;    // the sender's
    std::uint64_t bytes;

    // How many elements it has; throws if that is no whole number.
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

// What a request has of its own until its end, and what it gives then.
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
    std::vector<T> values; // their memory stays where it is when this is moved
    bool is_received = false;
    std::vector<T> taken(const hotlease_comm_message& from)
    {
        if (is_received)
            values.resize(message_of(from).count<T>());
        return std::move(values);
    }
};

} // namespace detail

// A send, a receive or a collective that has begun. `Result` is what wait() gives: nothing where the memory
// is the caller's, a hotlease::message of a receive into such memory, and a value or a std::vector that is
// the request's own until then.
//
// The caller's memory must outlive the request, which never touches it after its end: destroyed before, it
// cancels the operation if that is possible (a receive that nothing has come for, a send that has not begun),
// and else waits for its end. Where an exception is on its way through the block that began it, it does not
// wait but takes the memory back: what other members wait for then fails there, too, instead of waiting for a
// member that does something else.
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

    // Whether there is something to wait for: its result was not taken yet.
    bool valid() const noexcept { return handle_ != nullptr; }
    // Whether it has ended, so that wait() returns at once. Makes progress.
    bool test() { return hotlease_comm_test(handle_.get()) != 0; }
    // Cancels it if that is possible; whether it was. wait() throws hotlease::cancelled then.
    bool cancel() { return hotlease_comm_cancel(handle_.get()) != 0; }

    // Waits for its end; throws if it failed, what an operator of the program's threw in a collective. The
    // request is not valid afterwards.
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

// Waits for all; throws the first failure when all have ended.
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

// Waits until one has ended: the index of the first, for which wait() then returns at once. Those that are not
// valid are passed over; nothing if none is.
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
