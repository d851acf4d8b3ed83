// communicator.hpp: members as threads, values against a plain reference, and failures. Needs no platform.

#include <hotlease/communicator.hpp>

#include "check.h"

#include <array>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
namespace op = hotlease::op;
using hotlease::communicator;
using hotlease::inplace;

static const char secret[] = "the secret of these tests";
static std::mutex counting;

// Checks of threads are counted one at a time.
#define EXPECT(condition)                      \
    do {                                       \
        const bool expected_ = (condition);    \
        const std::lock_guard guard(counting); \
        CHECK(expected_ && #condition);        \
    } while (0)

// The error of this type that a call throws; a call that throws nothing is a failed check.
template <class Error, class Call>
static Error failure_of(Call call)
{
    try {
        call();
    } catch (const Error& error) {
        return error;
    } catch (const std::exception& other) {
        std::printf("    another one: %s\n", other.what());
    }
    EXPECT(!"an exception of that type was expected");
    return Error(hotlease::kind::internal, "none");
}

// Runs a member for each rank.
template <class Act>
static void each(std::uint32_t size, Act act, const hotlease::communicator_options& given = {})
{
    const hotlease::rendezvous meeting("127.0.0.1:0", secret);
    std::vector<std::thread> members;
    for (std::uint32_t rank = 0; rank < size; ++rank)
        members.emplace_back([&, rank] {
            hotlease::communicator_options options = given;
            options.name = "members";
            options.rendezvous = meeting.address();
            options.secret = secret;
            options.size = size;
            options.rank = rank;
            try {
                communicator all(options);
                act(all);
            } catch (const std::exception& error) {
                std::printf("    rank %u of %u: %s\n", rank, size, error.what());
                EXPECT(!"a member threw");
            }
        });
    for (auto& member : members)
        member.join();
}

// ---- Types -------------------------------------------------------------------------------------------------

struct particle {
    double x, y;
    std::int32_t kind;
    friend bool operator==(const particle&, const particle&) = default;
};
enum class color : std::uint16_t { red, green };

using hotlease::datatype_of;
static_assert(datatype_of<double> == HOTLEASE_COMM_F64 && datatype_of<const float> == HOTLEASE_COMM_F32);
static_assert(datatype_of<long> == HOTLEASE_COMM_I64 && datatype_of<unsigned char> == HOTLEASE_COMM_U8);
static_assert(datatype_of<bool> == HOTLEASE_COMM_BOOL && datatype_of<std::byte> == HOTLEASE_COMM_BYTES);
static_assert(datatype_of<std::complex<double>> == HOTLEASE_COMM_COMPLEX128);
static_assert(datatype_of<color> == HOTLEASE_COMM_U16);
static_assert(datatype_of<hotlease::with_index<float>> == HOTLEASE_COMM_F32_INDEX);
static_assert(datatype_of<hotlease::with_index<std::int64_t>> == HOTLEASE_COMM_I64_INDEX);
static_assert(datatype_of<particle> == HOTLEASE_COMM_RECORD(24));
static_assert(!std::is_copy_constructible_v<communicator> &&
              std::is_nothrow_move_constructible_v<communicator>);
static_assert(!std::is_copy_constructible_v<hotlease::request<>> &&
              !std::is_copy_assignable_v<hotlease::request<>>);

// ---- Messages ----------------------------------------------------------------------------------------------

static void messages(communicator& all)
{
    const std::uint32_t other = 1 - all.rank();
    const particle mine{1.5, 2.5, static_cast<std::int32_t>(all.rank())};
    all.send(mine, other, 3);
    EXPECT((all.recv_value<particle>(other, 3) == particle{1.5, 2.5, static_cast<std::int32_t>(other)}));
    const std::vector<int> numbers{1, 2, 3};
    all.send(numbers, other, 4);
    const hotlease::message coming = all.probe(communicator::any, 4);
    EXPECT(coming.source == other && coming.count<int>() == 3);
    EXPECT(all.recv_vector<int>(other, 4) == numbers && !all.iprobe(other, 4));
    std::array<double, 2> pair{}, given{static_cast<double>(all.rank()), 7};
    EXPECT(all.sendrecv(given, other, pair, other).count<double>() == 2 && pair[0] == other && pair[1] == 7);

    // A message that does not fit is an error, and waits.
    all.send(numbers, other);
    std::array<int, 2> two{};
    const auto cut = failure_of<hotlease::truncated>([&] { all.recv(two, other); });
    EXPECT(cut.kind() == hotlease::kind::output_too_large && cut.needed() == 12 && cut.rank() == other);
    EXPECT(failure_of<hotlease::communication_error>([&] { (void)all.recv_vector<double>(other); }).kind() ==
           hotlease::kind::invalid_argument);
    EXPECT(all.recv_vector<int>(other) == numbers);
    const auto no_rank = failure_of<hotlease::communication_error>([&] { all.send(1, 7); });
    EXPECT(no_rank.kind() == hotlease::kind::invalid_argument && !no_rank.rank());

    // Non-blocking: on the caller's memory, and on the request's.
    std::vector<int> into(3);
    auto receive = all.irecv(into, other, 5);
    auto owned = all.irecv_vector<int>(10, other, 6);
    auto sent = all.isend(numbers, other, 5);
    auto moved = all.isend(std::vector{4, 5}, other, 6);
    EXPECT(receive.wait().source == other && into == numbers);
    EXPECT((owned.wait() == std::vector{4, 5} && moved.wait() == std::vector{4, 5}));
    sent.wait();
    EXPECT(!sent.valid());

    // Waits for the one that ends first.
    std::array<int, 2> places{};
    std::vector<hotlease::request<hotlease::message>> several;
    for (std::uint32_t tag : {0, 1})
        several.push_back(all.irecv(places[tag], other, 20 + tag));
    for (std::uint32_t tag : {1, 0}) {
        all.send(8 + tag, other, 20 + tag);
        EXPECT(hotlease::wait_any(several) == tag && several[tag].wait().tag == 20 + tag);
        all.barrier(); // The next one is not sent before.
    }
    EXPECT((places == std::array{8, 9}) && !hotlease::wait_any(several));
    const auto twice = failure_of<hotlease::communication_error>([&] { sent.wait(); });
    EXPECT(std::string(twice.what()).find("already") != std::string::npos);
}

// ---- Requests without a wait --------------------------------------------------------------------------------

static void destroyed(communicator& all)
{
    const std::uint32_t other = 1 - all.rank();
    // A receive without a message is cancelled: a later message goes elsewhere.
    int never = 5;
    {
        auto forgotten = all.irecv(never, other, 9);
        EXPECT(!forgotten.test());
    }
    all.barrier();
    all.send(8, other, 9);
    EXPECT(all.recv_value<int>(other, 9) == 8 && never == 5);
    auto cancelled = all.irecv(never, other, 9);
    EXPECT(cancelled.cancel());
    EXPECT(failure_of<hotlease::cancelled>([&] { cancelled.wait(); }).kind() == hotlease::kind::cancelled);

    // A collective, and a large send that was started, are waited for, so their memory may be freed right after.
    for (int round = 0; round < 20; ++round) {
        std::vector<double> sums(1000, all.rank() + 1.0);
        auto reduction = all.iallreduce(inplace, sums, op::sum);
    }
    std::vector<char> large(2'000'000, 'x'), room(large.size());
    {
        auto send = all.isend(large, other, 1);
        all.recv(room, other, 1);
    }
    EXPECT(room == large);
    // One request replaces another one, which is cancelled.
    auto first = all.irecv(never, other, 9);
    first = all.irecv(never, other, 10);
    all.send(11, other, 10);
    EXPECT(first.wait().tag == 10 && never == 11);
    all.barrier();
}

// During an exception no request waits: this member's part fails at the others, too.
static void unwound(communicator& all)
{
    std::vector<double> sums(1'000'000);
    if (all.rank() == 0) {
        try {
            auto reduction = all.iallreduce(inplace, sums, op::sum);
            throw std::runtime_error("in the middle");
        } catch (const std::runtime_error&) {
            sums.clear();
            sums.shrink_to_fit();
        }
        all.send('x', 1);
        return;
    }
    (void)all.recv_value<char>(0);
    const auto failed =
        failure_of<hotlease::communication_error>([&] { all.allreduce(inplace, sums, op::sum); });
    EXPECT(failed.kind() == hotlease::kind::mismatch || failed.kind() == hotlease::kind::member_lost);
    EXPECT(failed.rank() == 0);
}

// ---- Collectives -------------------------------------------------------------------------------------------

template <class T>
static std::vector<T> numbered(std::size_t count, T from)
{
    std::vector<T> values(count);
    std::iota(values.begin(), values.end(), from);
    return values;
}

static void values(communicator& all)
{
    const std::uint32_t rank = all.rank(), size = all.size(), root = size - 1;
    const bool is_root = rank == root;
    const int sum = static_cast<int>(size * (size - 1) / 2), me = static_cast<int>(rank);

    EXPECT(all.allreduce(me, op::sum) == sum &&
           all.iallreduce(me, op::max).wait() == static_cast<int>(size) - 1);
    EXPECT(all.reduce(me, op::sum, root) == (is_root ? std::optional(sum) : std::nullopt));
    EXPECT(all.scan(me, op::sum) == me * (me + 1) / 2);
    EXPECT(all.exscan(me, op::sum) == (rank > 0 ? std::optional(me * (me - 1) / 2) : std::nullopt));
    EXPECT(all.allgather(me) == numbered(size, 0) && all.iallgather(me).wait() == numbered(size, 0));
    EXPECT(all.gather(me, root) == (is_root ? numbered(size, 0) : std::vector<int>{}));
    EXPECT(all.scatter_value(is_root ? numbered(size, 5) : std::vector<int>{}, root) == me + 5);
    EXPECT(all.alltoall(std::vector<int>(size, me)) == numbered(size, 0));
    int given = is_root ? 77 : 0;
    all.broadcast(given, root);
    EXPECT(given == 77);
    EXPECT((all.allreduce(std::vector{1.5, 2.5}, op::prod) ==
            std::vector{std::pow(1.5, size), std::pow(2.5, size)}));
    EXPECT(all.allreduce(true, op::logical_and) && all.allreduce(std::byte{2}, op::bit_or) == std::byte{2});
    EXPECT(all.allreduce(std::complex<double>(1, me), op::sum) == std::complex<double>(size, sum));
    const hotlease::with_index<double> least{static_cast<double>((rank + 1) % size), me};
    EXPECT((all.allreduce(least, op::minloc) == hotlease::with_index<double>{0, static_cast<int>(size) - 1}));
    // Different lengths: rank r has r elements.
    const std::vector<int> own(rank, me);
    std::vector<int> expected;
    for (std::uint32_t other = 0; other < size; ++other)
        expected.insert(expected.end(), other, static_cast<int>(other));
    EXPECT(all.allgatherv(own) == expected &&
           all.gatherv(own, root) == (is_root ? expected : std::vector<int>{}));
}

// Each collective in memory of the caller, waiting and not, in place and not.
static void spans(communicator& all)
{
    const std::uint32_t rank = all.rank(), size = all.size();
    const auto n = std::size_t{100};
    const auto run = [](auto&& request) { std::forward<decltype(request)>(request).wait(); };
    std::vector<std::size_t> counts(size), places(size);
    for (std::size_t r = 0; r < size; ++r) {
        counts[r] = n + r;
        places[r] = r == 0 ? 1 : places[r - 1] + counts[r - 1] + 1;
    }
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    const auto start = [&](std::size_t r) { return r * n + r * (r - 1) / 2; };
    const auto of = [](std::size_t r, std::size_t i) { return static_cast<long>(1000 * r + i); };
    const auto block = [&](std::size_t r, std::size_t count) { return numbered(count, of(r, 0)); };
    for (const bool waits : {true, false}) {
        std::vector<long> all_values(size * n), mine = block(rank, n), reduced(n);
        for (std::size_t r = 0; r < size; ++r)
            std::iota(all_values.begin() + static_cast<std::ptrdiff_t>(r * n),
                      all_values.begin() + static_cast<std::ptrdiff_t>((r + 1) * n), of(r, 0));
        std::vector<long> into(size * n), uneven(total + size + 1, -1);
        waits ? all.gather(mine, into, 0) : run(all.igather(mine, into, 0));
        EXPECT(rank != 0 || into == all_values);
        waits ? all.allgather(mine, into) : run(all.iallgather(mine, into));
        EXPECT(into == all_values);
        waits ? all.scatter(all_values, reduced, 0) : run(all.iscatter(all_values, reduced, 0));
        EXPECT(reduced == mine);
        waits ? all.scatter(all_values, std::span(reduced), 1 % size)
              : run(all.iscatter(all_values, std::span(reduced), 1 % size));
        waits ? all.alltoall(all_values, into) : run(all.ialltoall(all_values, into));
        EXPECT(into[(size - 1) * n] == of(rank, 0));
        waits ? all.allgatherv(block(rank, counts[rank]), uneven, counts, places) : [&] {
            const auto own = block(rank, counts[rank]);
            run(all.iallgatherv(own, uneven, counts, places));
        }();
        bool is_right = uneven.front() == -1 && uneven.back() == -1;
        for (std::size_t r = 0; r < size; ++r)
            for (std::size_t i = 0; i < counts[r]; ++i)
                is_right = is_right && uneven[places[r] + i] == of(r, i);
        EXPECT(is_right);
        const auto own = block(rank, counts[rank]);
        std::vector<long> packed(total), piece(counts[rank]);
        waits ? all.gatherv(own, packed, counts, 0) : run(all.igatherv(own, packed, counts, 0));
        EXPECT(rank != 0 || packed[start(size - 1)] == of(size - 1, 0));
        waits ? all.scatterv(packed, counts, piece, 0) : run(all.iscatterv(packed, counts, piece, 0));
        EXPECT(piece == own);
        // Rank r gets its part of each rank's values, as long as counts[r].
        std::vector<std::size_t> received(size, counts[rank]);
        std::vector<long> exchanged(size * counts[rank]);
        for (std::size_t r = 0; r < size; ++r)
            std::fill_n(packed.begin() + static_cast<std::ptrdiff_t>(start(r)), counts[r], of(rank, r));
        waits ? all.alltoallv(packed, counts, exchanged, received)
              : run(all.ialltoallv(packed, counts, exchanged, received));
        EXPECT(exchanged.front() == of(0, rank) && exchanged.back() == of(size - 1, rank));

        std::fill(packed.begin(), packed.end(), long{rank} + 1);
        const long everyone = static_cast<long>(size) * (size + 1) / 2;
        waits ? all.reduce_scatter(packed, piece, counts, op::sum)
              : run(all.ireduce_scatter(packed, piece, counts, op::sum));
        EXPECT(piece == std::vector<long>(counts[rank], everyone));
        into.assign(size * n, 1);
        waits ? all.reduce_scatter_block(into, reduced, op::sum)
              : run(all.ireduce_scatter_block(into, reduced, op::sum));
        EXPECT(reduced == std::vector<long>(n, size));
        mine.assign(n, long{rank} + 1);
        waits ? all.reduce(mine, reduced, op::sum, 0) : run(all.ireduce(mine, reduced, op::sum, 0));
        EXPECT(rank != 0 || reduced == std::vector<long>(n, everyone));
        waits ? all.allreduce(mine, reduced, op::sum) : run(all.iallreduce(mine, reduced, op::sum));
        EXPECT(reduced == std::vector<long>(n, everyone));
        waits ? all.scan(mine, reduced, op::sum) : run(all.iscan(mine, reduced, op::sum));
        EXPECT(reduced.back() == long{rank + 1} * (rank + 2) / 2);
        waits ? all.exscan(mine, reduced, op::sum) : run(all.iexscan(mine, reduced, op::sum));
        EXPECT(rank == 0 || reduced.back() == long{rank + 1} * rank / 2);
        waits ? all.broadcast(mine, 0) : run(all.ibroadcast(mine, 0));
        EXPECT(mine == std::vector<long>(n, 1));
        waits ? all.barrier() : run(all.ibarrier());

        mine.assign(n, long{rank} + 1);
        waits ? all.allreduce(inplace, mine, op::sum) : run(all.iallreduce(inplace, mine, op::sum));
        EXPECT(mine == std::vector<long>(n, everyone));
        into.assign(size * n, -1);
        std::fill_n(into.begin() + static_cast<std::ptrdiff_t>(rank * n), n, of(rank, 0));
        waits ? all.allgather(inplace, into) : run(all.iallgather(inplace, into));
        EXPECT(into.front() == of(0, 0) && into.back() == of(size - 1, 0));
    }
}

// x -> a x + b: one after the other is associative, and the order matters.
struct line {
    std::int64_t a, b;
    friend bool operator==(const line&, const line&) = default;
};

static void operators(communicator& all)
{
    const auto rank = static_cast<std::int64_t>(all.rank());
    const auto size = static_cast<std::int64_t>(all.size());
    const auto then = [](line f, line g) { return line{g.a * f.a, g.a * f.b + g.b}; };
    line expected{1, 0};
    for (std::int64_t r = 0; r < size; ++r)
        expected = then(expected, line{r + 2, r});
    EXPECT((all.allreduce(line{rank + 2, rank}, then) == expected));
    const std::vector<line> mine(300, line{rank + 2, rank});
    EXPECT(all.allreduce(mine, then) == std::vector(300, expected));
    EXPECT((all.iallreduce(line{rank + 2, rank}, then).wait() == expected));
    const auto longer = hotlease::commutative([](double a, double b) { return a < b ? b : a; });
    EXPECT(all.allreduce(static_cast<double>(rank), longer) == static_cast<double>(size - 1));
    // Objects that it captures live until nothing needs it any more.
    const auto alive = std::make_shared<int>(1);
    {
        std::int64_t total = rank;
        auto pending = all.iallreduce(inplace, std::span(&total, 1),
                                      [alive](std::int64_t a, std::int64_t b) { return a + b; });
        pending.wait();
        EXPECT(total == size * (size - 1) / 2);
    }
    EXPECT(alive.use_count() == 1);

    // Its exception is rethrown here, and reported to the others; another communicator is not harmed.
    const communicator same = all.dup();
    const auto throwing = [](int, int) -> int { throw std::out_of_range("too far"); };
    bool is_told = false;
    try {
        (void)same.allreduce(1, throwing);
    } catch (const std::out_of_range& own) {
        is_told = std::string(own.what()) == "too far";
    } catch (const hotlease::mismatch&) {
        is_told = true;
    }
    EXPECT(is_told);
    all.barrier();
}

static void failures(communicator& all)
{
    std::vector<int> two(2), three(3);
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { all.allreduce(three, two, op::sum); }, [&] { all.allgather(two, three); },
             [&] { all.alltoall(three, three); }, [&] { all.reduce_scatter_block(three, two, op::sum); },
             [&] { all.allgatherv(two, three, std::vector<std::size_t>{2, 2}); },
             [&] { all.allgatherv(two, three, std::vector<std::size_t>{2}); },
             [&] {
                 all.alltoallv(two, std::vector<std::size_t>{2, 2}, three, std::vector<std::size_t>{1, 1});
             }})
        EXPECT(failure_of<hotlease::communication_error>(call).kind() == hotlease::kind::invalid_argument);
    EXPECT(failure_of<hotlease::communication_error>([&] { all.allreduce(two, two, op::sum); }).kind() ==
           hotlease::kind::invalid_argument);
    // Counts that do not match are found where data meets; no later collective succeeds.
    std::vector<int> uneven(all.rank() + 1);
    EXPECT(failure_of<hotlease::mismatch>([&] { (void)all.allreduce(uneven, op::sum); }).kind() ==
           hotlease::kind::mismatch);

    communicator moved = std::move(all);
    const auto gone = failure_of<hotlease::communication_error>([&] { moved.finish(), moved.barrier(); });
    EXPECT(std::string(gone.what()).find("it has finished") != std::string::npos && moved.size() == 0);
}

// In checked mode both calls are reported, with their places.
static void checked(communicator& all)
{
    hotlease::at();
    const auto differ = failure_of<hotlease::mismatch>(
        [&] { all.rank() == 0 ? all.barrier() : (void)all.allreduce(1, op::sum); });
    EXPECT(std::string(differ.what()).find("comm_cpp.cpp:") != std::string::npos);
    EXPECT(differ.rank() == 1 && all.allreduce(1, op::sum) == 2);
}

// ---- Fewer, and other, members -----------------------------------------------------------------------------

static void parts(communicator& all)
{
    const auto half = all.split(all.rank() % 2);
    EXPECT(half && half->size() == (all.size() + 1 - all.rank() % 2) / 2 && half->rank() == all.rank() / 2);
    EXPECT(all.split(all.rank() == 0 ? std::optional(1u) : std::nullopt).has_value() == (all.rank() == 0));
    communicator same = all.dup();
    EXPECT(same.allreduce(1u, op::sum) == all.size() && same.rank() == all.rank() && same.name() == "members" && same.link() == all.link());
    all = std::move(same); // the other one finishes
    EXPECT(all.allreduce(1u, op::sum) == all.size());
    all.finish();
}

// To the others, a member that leaves by an exception has failed; they go on.
static void thrown_out(communicator& all)
{
    const auto act = [](communicator mine) {
        if (mine.rank() == 1)
            throw std::runtime_error("on purpose");
        const auto lost = failure_of<hotlease::member_lost>([&] { mine.barrier(), mine.barrier(); });
        EXPECT(lost.rank() == 1 && lost.cause().find("gave up") != std::string::npos && !lost.billed());
        EXPECT(mine.shrink().allreduce(1, op::sum) == 2);
    };
    const std::uint32_t rank = all.rank();
    try {
        act(std::move(all));
        EXPECT(rank != 1);
    } catch (const std::runtime_error& error) {
        EXPECT(rank == 1 && std::string(error.what()) == "on purpose");
    }
}

static void joining()
{
    const hotlease::rendezvous meeting("127.0.0.1:0", secret);
    const hotlease::communicator_options options{.name = "alone",
                                                 .rendezvous = meeting.address(),
                                                 .size = 3,
                                                 .rank = 1,
                                                 .secret = secret,
                                                 .join_timeout = 2s}; // enough time to be admitted
    const auto missing = failure_of<hotlease::not_together>([&] { communicator{options}; });
    EXPECT(missing.cause().find("ranks 0 and 2 of 3") != std::string::npos);
    auto other = options;
    other.secret = "another secret of theirs";
    EXPECT(failure_of<hotlease::communication_error>([&] { communicator{other}; }).kind() ==
           hotlease::kind::refused);
    EXPECT(failure_of<hotlease::communication_error>([&] { communicator{{.name = "x"}}; }).kind() ==
           hotlease::kind::invalid_argument);
    EXPECT(failure_of<hotlease::communication_error>([] {
               hotlease::rendezvous("127.0.0.1:0", "short");
           }).kind() == hotlease::kind::invalid_argument);
}
int main()
try {
    each(2, messages);
    each(2, destroyed);
    each(2, unwound);
    for (const std::uint32_t size : {1u, 2u, 3u, 5u}) {
        each(size, values);
        each(size, spans);
    }
    each(4, operators);
    each(2, failures);
    each(2, checked, {.checked = true});
    each(5, parts);
    each(3, thrown_out);
    joining();
    return checks_done();
} catch (const std::exception& error) {
    std::printf("    %s\n", error.what());
    return 1;
}
