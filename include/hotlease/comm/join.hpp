// Rendezvous, options of a join, and the base of communicators. Included by hotlease/communicator.hpp.
#ifndef HOTLEASE_COMM_JOIN_HPP
#define HOTLEASE_COMM_JOIN_HPP

#include <hotlease/comm/request.hpp>
#include <hotlease/gang.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace hotlease {

// Rendezvous where members meet, served by a thread of this program until the object is destroyed. Connected members do
// not need it any more. The program `hotlease comm rendezvous` does the same.
class rendezvous {
public:
    // Serves at an address and port, "0.0.0.0:7072" for instance; port 0 is any free port. Members need the same
    // secret, which has at least 16 bytes. Default: HOTLEASE_COMM_SECRET, or the content of the file
    // HOTLEASE_COMM_SECRET_FILE.
    explicit rendezvous(const std::string& listen, std::string_view secret = {})
    {
        hotlease_comm_rendezvous* started = nullptr;
        const void* bytes = secret.empty() ? nullptr : secret.data();
        detail::communicate([&](hotlease_error** failure) {
            return hotlease_comm_rendezvous_start(listen.c_str(), bytes, secret.size(), &started, failure);
        });
        handle_.reset(started);
    }
    // Address on which the rendezvous listens, "127.0.0.1:40123" for instance.
    std::string address() const { return hotlease_comm_rendezvous_address(handle_.get()); }

private:
    detail::unique<hotlease_comm_rendezvous, hotlease_comm_rendezvous_free> handle_;
};

// Options of a join, explained at hotlease_comm_options in communicator.h. Options that are empty or 0 are taken from
// the environment.
struct communicator_options {
    std::string name = {};                  // empty: HOTLEASE_COMM_NAME
    std::string rendezvous = {};            // "host:port"; empty: HOTLEASE_COMM_RENDEZVOUS
    std::uint32_t size = 0;                 // number of members; 0: HOTLEASE_COMM_SIZE
    std::optional<std::uint32_t> rank = {}; // none: HOTLEASE_COMM_RANK, or any free rank
    std::string secret = {};                // at least 16 bytes; empty: secret_file
    std::string secret_file = {}; // empty: HOTLEASE_COMM_SECRET, or the file HOTLEASE_COMM_SECRET_FILE
    bool sealed = false;          // encrypts the members' messages
    std::chrono::milliseconds join_timeout = std::chrono::seconds(30);
    std::chrono::milliseconds failure_bound = std::chrono::seconds(2);
    std::chrono::milliseconds linger = std::chrono::seconds(30);
    std::chrono::microseconds spin = std::chrono::microseconds(20);
    std::uint64_t eager_bytes = 256 * 1024;
    std::uint64_t early_bytes = 256 << 20;
    std::string address = {}; // at which others reach this member; empty: the address it reached the rendezvous from
    bool newcomer = false;    // joins a communicator that grows to `size`: communicator::grow
    bool checked = false;     // members compare their calls before each collective: hotlease::at
    // "direct", "tcp", "ofi", "redis://host:6379", "s3://bucket", "dynamodb://table", "auto:..."; empty:
    // HOTLEASE_COMM_LINK
    std::string link = {};
};

namespace detail {

inline const hotlease_comm* of_gang(const hotlease_context* context)
{
    const hotlease_comm* lent = nullptr;
    communicate(
        [&](hotlease_error** failure) { return hotlease_context_communicator(context, &lent, failure); });
    return lent;
}

inline hotlease_comm* join(const communicator_options& options)
{
    const auto text = [](const std::string& given) { return given.empty() ? nullptr : given.c_str(); };
    // In C, 0 means the default.
    const auto at_least_1 = [](auto time) {
        return time.count() > 1 ? static_cast<std::uint64_t>(time.count()) : 1;
    };
    hotlease_comm_options asked{};
    asked.struct_size = sizeof asked;
    asked.name = text(options.name);
    asked.rendezvous = text(options.rendezvous);
    asked.secret = text(options.secret);
    asked.secret_size = options.secret.size();
    asked.secret_file = text(options.secret_file);
    asked.size = options.size;
    asked.has_rank = options.rank ? 1 : 0;
    asked.rank = options.rank.value_or(0);
    asked.sealed = options.sealed ? 1 : 0;
    asked.join_timeout_ms = at_least_1(options.join_timeout);
    asked.failure_bound_ms = at_least_1(options.failure_bound);
    asked.linger_ms = at_least_1(options.linger);
    asked.spin_us = options.spin.count() > 0 ? options.spin.count() : -1;
    asked.eager_bytes = options.eager_bytes;
    asked.early_bytes = options.early_bytes;
    asked.address = text(options.address);
    asked.newcomer = options.newcomer ? 1 : 0;
    asked.checked = options.checked ? 1 : 0;
    asked.link = text(options.link);
    hotlease_comm* joined = nullptr;
    communicate([&](hotlease_error** failure) { return hotlease_comm_join(&asked, &joined, failure); });
    return joined;
}

// A communicator's handle, and calls of functions of communicator.h with this handle.
class with_handle {
public:
    with_handle(with_handle&&) noexcept = default;
    with_handle& operator=(with_handle&& other) noexcept
    {
        if (this != &other) {
            leave();
            handle_ = std::move(other.handle_);
            is_lent_ = other.is_lent_;
            unwinding_ = other.unwinding_;
        }
        return *this;
    }

    // Rank, size and name; 0 and "" if the communicator has finished or was moved from.
    std::uint32_t rank() const noexcept { return hotlease_comm_rank(handle_.get()); }
    std::uint32_t size() const noexcept { return hotlease_comm_size(handle_.get()); }
    std::string name() const { return hotlease_comm_name(handle_.get()); }
    // Link of the members: "direct", "redis://cache:6379". For "auto", the link that was chosen.
    std::string link() const { return hotlease_comm_link(handle_.get()); }
    const hotlease_comm* handle() const noexcept { return handle_.get(); }

    // Finishes: waits until everything is sent, and until other members have read it or are gone. No call is
    // possible afterwards.
    void finish()
    {
        alive();
        demand(!is_lent_, "communicator::finish: it is the gang's, whose workers keep it");
        communicate([&](hotlease_error** failure) { return hotlease_comm_finish(handle_.release(), failure); });
    }
    // Aborts, like a member that has failed: the other members learn of it at once (on a gang, when the function has
    // returned its error). No call is possible afterwards.
    void abort() noexcept
    {
        hotlease_comm* const handle = handle_.release();
        if (!is_lent_)
            hotlease_comm_abort(handle);
    }

protected:
    explicit with_handle(hotlease_comm* handle) : handle_(handle) {}
    // Communicator of a gang: its worker owns it.
    explicit with_handle(const hotlease_comm* lent) : handle_(const_cast<hotlease_comm*>(lent)), is_lent_(true) {}
    ~with_handle() { leave(); }

    // Calls a function of communicator.h with the given arguments.
    template <auto Function, class Arguments>
    void run(const Arguments& arguments, const thrown* by_operator = nullptr) const
    {
        alive();
        std::apply(
            [&](const auto&... each) {
                communicate([&](hotlease_error** failure) { return Function(handle_.get(), each..., failure); },
                            by_operator);
            },
            arguments);
    }
    // Calls a function of communicator.h that starts an operation.
    template <auto Function, class Result = void, class Arguments>
    request<Result> begin(const Arguments& arguments, kept<Result> own = {},
                          std::shared_ptr<thrown> by_operator = {}) const
    {
        hotlease_comm_request* begun = nullptr;
        run<Function>(std::tuple_cat(arguments, std::tuple(&begun)));
        return {begun, std::move(own), std::move(by_operator)};
    }

private:
    void alive() const { demand(handle_ != nullptr, "communicator: it has finished, or was moved from"); }
    void leave() noexcept
    {
        if (is_lent_ || std::uncaught_exceptions() > unwinding_)
            abort();
        handle_.reset();
    }

    unique<hotlease_comm, hotlease_comm_free> handle_;
    bool is_lent_ = false;
    int unwinding_ = std::uncaught_exceptions();
};

} // namespace detail

} // namespace hotlease

#endif
