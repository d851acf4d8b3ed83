// The C++ interface, against a running platform: client_cpp path/to/libtest_functions.so

#include <hotlease/hotlease.hpp>

#include "check.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace std::chrono_literals;

// The error that a call throws; a call that does not throw is a failed check.
template <class Call>
static hotlease::error failure_of(Call call)
{
    try {
        call();
    } catch (const hotlease::error& error) {
        return error;
    }
    CHECK(!"an exception was expected");
    return {hotlease::kind::internal, hotlease::ran::no, "none"};
}

static void calls(const hotlease::invoker& invoker)
{
    const hotlease::function echo = invoker.function("echo");
    CHECK((echo.call<double>({1.0, 2.5}) == std::vector{1.0, 2.5}));
    CHECK(echo.call<char>(std::string_view("text")) == (std::vector{'t', 'e', 'x', 't'}));
    CHECK((echo.call<int>(std::array<int, 0>{}).empty()));
    CHECK(echo.call_value<std::uint64_t>(std::uint64_t{7}) == 7);
    std::array<short, 4> out{};
    CHECK(echo.call_into(std::vector<short>{1, 2, 3}, out) == 3 && out[2] == 3 && out[3] == 0);

    // A result whose size is not the type's is an error, and is not cut.
    const auto odd = failure_of([&] { (void)echo.call<double>(std::string_view("12345")); });
    CHECK(odd.kind() == hotlease::kind::function_failed && odd.ran() == hotlease::ran::yes);
    CHECK(failure_of([&] { (void)echo.call_value<double>(1.0f); }).kind() == hotlease::kind::function_failed);

    // A copy is the same function; larger output needs an option.
    const hotlease::function copy = echo;
    CHECK(copy.call<char>(std::string(4096, 'x')).size() == 4096);
    const std::string long_text(100'000, 'y');
    const auto large = failure_of([&] { (void)copy.call<char>(long_text); });
    CHECK(large.kind() == hotlease::kind::output_too_large && large.needed() == long_text.size());
    CHECK(invoker.function("echo", {.output_bytes = 200'000}).call<char>(long_text).size() == long_text.size());
}

static void failures(const hotlease::invoker& invoker)
{
    const auto unknown = failure_of([&] { (void)invoker.function("ekho"); });
    CHECK(unknown.kind() == hotlease::kind::unknown_function && !unknown.billed());
    const auto own = failure_of([&] { (void)invoker.function("fail").call<char>(std::string_view("no")); });
    CHECK(own.kind() == hotlease::kind::function_failed && own.code() == 7 && own.billed());
    CHECK(std::string(own.what()).find("as asked") != std::string::npos);
    // The message is complete although the result would have been small, and also if the output is staged.
    const auto brief = failure_of([&] { (void)invoker.function("fail").call_value<char>('x'); });
    CHECK(std::string(brief.what()).find("error 7; it says: as asked") != std::string::npos);
    const auto roomy = invoker.function("fail", {.output_bytes = 100'000});
    const auto staged = failure_of([&] { (void)roomy.call_value<double>('x'); });
    CHECK(std::string(staged.what()).find("it says: as asked") != std::string::npos);
    const auto staged_vector = failure_of([&] { (void)roomy.call<char>(std::string_view("x")); });
    CHECK(std::string(staged_vector.what()).find("it says: as asked") != std::string::npos);
    const auto later = failure_of([&] { (void)roomy.submit<char>(std::string_view("x")).get(); });
    CHECK(std::string(later.what()).find("it says: as asked") != std::string::npos);
    // A small result that is too large for its place is reported as such.
    const auto cut = failure_of([&] {
        std::array<char, 2> out{};
        (void)invoker.function("echo").call_into(std::string_view("abcd"), out);
    });
    CHECK(cut.kind() == hotlease::kind::output_too_large && cut.needed() == 4);
    const auto hurried = invoker.function("wait_ms", {.timeout = 50ms});
    const auto late = failure_of([&] { (void)hurried.call<char>(std::vector<std::uint32_t>{10'000}); });
    CHECK(late.kind() == hotlease::kind::deadline_exceeded && late.ran() != hotlease::ran::no);
}

// One side in place, or both; a chosen slot; no waiting; many small calls.
static void other_ways(const hotlease::invoker& invoker)
{
    const hotlease::function increment = invoker.function("increment");
    auto numbers = invoker.buffer<std::uint32_t>(10'000);
    std::iota(numbers.begin(), numbers.end(), 0u);
    const std::vector<std::uint32_t> three{7, 8, 9};
    auto place = invoker.buffer<std::uint32_t>(10'000);

    CHECK((increment.call<std::uint32_t>(numbers.part(1, 2)) == std::vector<std::uint32_t>{2, 3}));
    CHECK(increment.call(three, place) == 3 && place[2] == 10);
    CHECK(increment.call(numbers, place) == 10'000 && place[9'999] == 10'000);
    CHECK(increment.call_into(numbers, numbers) == 10'000 && numbers[0] == 1);
    // The input is in place, at any size, so that only the output's room counts.
    const auto large = failure_of([&] { (void)increment.call<std::uint32_t>(numbers); });
    CHECK(large.kind() == hotlease::kind::output_too_large && large.needed() == 40'000);
    auto from = increment.submit<std::uint32_t>(numbers.part(0, 1));
    auto to = increment.submit(three, place.part(5, 3));
    CHECK(from.get() == std::vector<std::uint32_t>{2} && to.get() == 3 && place[5] == 8);

    CHECK(increment.on_slot(0).call_value<std::uint32_t>(std::uint32_t{1}) == 2);
    const auto none = failure_of([&] { (void)increment.on_slot(99); });
    CHECK(none.kind() == hotlease::kind::invalid_argument);
    auto tried = increment.try_submit_value<std::uint32_t>(std::uint32_t{4});
    CHECK(tried && tried->get() == 5);
    std::vector<hotlease::future<std::vector<char>>> waiting;
    const auto wait_ms = invoker.function("wait_ms");
    for (int i = 0; i < 1000; ++i) {
        auto next = wait_ms.try_submit<char>(std::vector<std::uint32_t>{2});
        if (!next)
            break;
        waiting.push_back(std::move(*next));
    }
    CHECK(!waiting.empty() && waiting.size() < 1000); // full, and reported instead of waiting
    for (auto& each : waiting)
        (void)each.get();

    auto pipeline = increment.pipeline<std::uint32_t, std::uint32_t>();
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < 1000; ++i) {
        if (pipeline.full())
            sum += pipeline.pop();
        pipeline.push(i);
    }
    while (!pipeline.empty())
        sum += pipeline.pop();
    CHECK(sum == 1000 * 1001 / 2);
    // A result of another size fails that call only.
    auto small = invoker.function("alignment").pipeline<std::uint32_t, char>();
    small.push('x');
    small.push('y');
    CHECK(failure_of([&] { (void)small.pop(); }).kind() == hotlease::kind::output_too_large);
    CHECK(failure_of([&] { (void)small.pop(); }).needed() == 8);
    CHECK(failure_of([&] { (void)pipeline.pop(); }).kind() == hotlease::kind::invalid_argument);

    // A moved-from object says so.
    auto moved = std::move(place);
    CHECK(place.size() == 0 && moved.size() == 10'000);
    const auto gone = failure_of([&] { (void)increment.call(three, place); });
    CHECK(std::string(gone.what()).find("moved from") != std::string::npos);
    auto taken = increment.submit_value<std::uint32_t>(std::uint32_t{1});
    (void)taken.get();
    CHECK(std::string(failure_of([&] { (void)taken.get(); }).what()).find("taken already") != std::string::npos);
}

static void buffers(const hotlease::invoker& invoker)
{
    const hotlease::function increment = invoker.function("increment");
    constexpr std::size_t n = 100'000;
    hotlease::buffer<std::uint32_t> in = invoker.input<std::uint32_t>(2 * n);
    hotlease::buffer<std::uint32_t> out = invoker.output<std::uint32_t>(2 * n);
    std::iota(in.begin(), in.end(), 0u);

    CHECK(increment.call(in, n, out) == n && out[0] == 1 && out[n - 1] == n && out[n] == 0);

    // Two halves in flight at once.
    auto low = increment.submit(in.part(0, n), out.part(0, n));
    auto high = increment.submit(in.part(n, n), out.part(n, n));
    CHECK(low.get() == n && high.get() == n && out[2 * n - 1] == 2 * n);
    CHECK(!low.valid());

    // Several parts of two buffers, seen as one input, to several parts of one.
    CHECK(increment.call_parts({in.part(5, 2), out.part(0, 1)}, {out.part(10, 1), out.part(20, 2)}) == 3);
    CHECK(out[10] == 6 && out[11] == 12 && out[20] == 7 && out[21] == 2);
    const std::vector from{in.part(0, 1), in.part(9, 1)};
    CHECK(increment.call_parts(from, std::array{out.part(n, 2)}) == 2 && out[n] == 1 && out[n + 1] == 10);
    const std::vector many(HOTLEASE_PARTS_MAX + 1, in.part(0, 1));
    CHECK(failure_of([&] { (void)increment.call_parts(many, from); }).kind() ==
          hotlease::kind::invalid_argument);

    try {
        (void)in.part(n, n + 1);
        CHECK(!"a part past the end was made");
    } catch (const std::out_of_range&) {
        CHECK(true);
    }
    hotlease::buffer<std::uint32_t> moved = std::move(in);
    CHECK(moved.size() == 2 * n && std::span(moved)[n] == n);
}

static void futures(const hotlease::invoker& invoker)
{
    const hotlease::function increment = invoker.function("increment");
    std::vector<hotlease::future<std::uint32_t>> results;
    for (std::uint32_t i = 0; i < 150; ++i)
        results.push_back(increment.submit_value<std::uint32_t>(i));
    std::uint32_t sum = 0;
    for (auto& result : results)
        sum += result.get();
    CHECK(sum == 150 * 151 / 2);

    const auto begun = std::chrono::steady_clock::now();
    auto slow = invoker.function("wait_ms").submit<char>(std::vector<std::uint32_t>{500});
    const bool is_early = !slow.is_ready() && slow.wait_for(1ms) == std::future_status::timeout &&
                          slow.wait_until(begun - 1s) == std::future_status::timeout;
    // This thread may have been stopped meanwhile.
    CHECK(slow.valid() && (is_early || std::chrono::steady_clock::now() - begun >= 500ms));
    slow.wait();
    CHECK(slow.is_ready() && slow.wait_for(0s) == std::future_status::ready);
    CHECK(slow.get().empty() && !slow.valid());

    std::atomic<std::uint32_t> arrived = 0, total = 0, failed = 0;
    const auto count = [&](auto outcome) {
        if (outcome.failed())
            failed += 1;
        else
            total += outcome.get();
        arrived += 1;
        arrived.notify_one();
    };
    for (std::uint32_t i = 0; i < 10; ++i)
        increment.submit_value<std::uint32_t>(i).then(count);
    // One that fails, one of a wrong size, and one on a buffer.
    invoker.function("fail").submit_value<std::uint32_t>(1u).then(count);
    increment.submit_value<std::uint32_t>(std::uint64_t{1}).then(count);
    auto numbers = invoker.buffer<std::uint32_t>(5);
    increment.submit(numbers.part(), numbers.part()).then(count);
    for (std::uint32_t seen = arrived; seen < 13; seen = arrived)
        arrived.wait(seen);
    CHECK(total == 55 + 5 && failed == 2);
}

static void maps(const hotlease::invoker& invoker)
{
    const hotlease::function increment = invoker.function("increment");
    std::vector<std::uint32_t> numbers(500);
    std::iota(numbers.begin(), numbers.end(), 0u);
    const std::vector<std::uint32_t> more = increment.map<std::uint32_t>(numbers);
    CHECK(more.size() == 500 && more.front() == 1 && more.back() == 500);
    const std::vector<std::vector<std::uint32_t>> lists{{1, 2}, {}, {3}};
    CHECK((increment.map<std::uint32_t>(lists) == std::vector<std::vector<std::uint32_t>>{{2, 3}, {}, {4}}));
    CHECK(increment.map<std::uint32_t>(std::vector<std::uint32_t>{}).empty());
    CHECK(failure_of([&] { (void)invoker.function("fail").map<char>(numbers); }).code() == 7);
    CHECK(failure_of([&] { (void)increment.map<std::uint64_t>(numbers); }).kind() ==
          hotlease::kind::function_failed);
}

static void plans(const hotlease::invoker& invoker)
{
    const hotlease::model model = invoker.function("wait_ms").learn_value(std::uint32_t{2});
    const auto [local, remote, predicted] = model.plan(100, 2ms);
    CHECK(local + remote == 100 && remote > 0 && remote <= 75 && predicted >= local * 2ms);
    CHECK(model.plan(100, -1ns).remote == 0);
    const hotlease::model of_range = invoker.function("echo").learn(std::vector{1.0, 2.0});
    CHECK(of_range.plan(100, 1s).remote > 90);
    hotlease::model from = invoker.function("echo").learn(std::string_view("x"));
    const hotlease::model to = std::move(from);
    CHECK(to.plan(1, 1ns).local == 1);
    CHECK(failure_of([&] { (void)from.plan(1, 1ns); }).kind() == hotlease::kind::invalid_argument);
}

int main(int, char** argv)
try {
    const hotlease::code code{argv[1]};
    CHECK(code.functions().size() == 9 && code.functions().front() == "alignment");
    CHECK(failure_of([] { hotlease::code{"/etc/hostname"}; }).kind() == hotlease::kind::code_rejected);
    CHECK(failure_of([&] { hotlease::invoker{code, {.depth = 63}}; }).kind() ==
          hotlease::kind::invalid_argument);

    CHECK(failure_of([&] { hotlease::invoker{code, {.transport = "carrier pigeon"}}; }).kind() ==
          hotlease::kind::unavailable);
    // No negative time becomes the default.
    for (const auto& [negative, name] : std::initializer_list<std::pair<hotlease::options, const char*>>{
             {{.hot_budget = -1us}, "hot_budget"},
             {{.ttl = -1ms}, "ttl"},
             {{.timeout = -1us}, "timeout"},
             {{.move_within = -1ms}, "move_within"},
             {{.patience = -1ms}, "patience"}}) {
        const auto refused = failure_of([&] { hotlease::invoker{code, negative}; });
        CHECK(refused.kind() == hotlease::kind::invalid_argument);
        CHECK(std::string(refused.what()).find(name) != std::string::npos);
    }
    {
        hotlease::invoker brief{code, {.ttl = 300ms, .renew_lease = false, .patience = 20s}};
        const hotlease::function echo = brief.function("echo");
        auto kind = hotlease::kind::internal;
        for (const auto until = std::chrono::steady_clock::now() + 20s;
             kind != hotlease::kind::lease_ended && std::chrono::steady_clock::now() < until;) {
            try {
                CHECK(echo.call<char>(std::string_view("x")) == std::vector{'x'});
            } catch (const hotlease::error& error) {
                kind = error.kind();
            }
        }
        CHECK(kind == hotlease::kind::lease_ended);
    }
    for (const std::uint64_t time : {1, 2}) {
        hotlease::invoker kept{code, {.patience = 20s, .state = "visits-cpp"}};
        CHECK(kept.function("visits").call_value<std::uint64_t>(0) == time);
        kept.deallocate();
    }
    {
        hotlease::invoker with{code, {.patience = 20s, .variables = "TEST_VARIABLE=from C++\nOTHER=1"}};
        const auto value = with.function("variable").call<char>(std::string_view());
        CHECK(std::string(value.begin(), value.end()) == "from C++");
    }
    const auto own = failure_of([&] { hotlease::invoker{code, {.variables = "HOTLEASE_LOG=debug"}}; });
    CHECK(own.kind() == hotlease::kind::invalid_argument);
    hotlease::invoker invoker{code, {.slots = 1, .label = "test in C++", .registered_buffers = 100}};
    CHECK(invoker.slots() == 1 && invoker.transport() == "shm");
    calls(invoker);
    failures(invoker);
    buffers(invoker);
    other_ways(invoker);
    futures(invoker);
    maps(invoker);
    plans(invoker);

    const hotlease::function echo = invoker.function("echo");
    const hotlease::usage used = invoker.deallocate();
    CHECK(used.invocations > 600 && used.allocated > 0ns && used.compute > 0ns);
    const auto over = failure_of([&] { (void)echo.call<char>(std::string_view("x")); });
    CHECK(over.kind() == hotlease::kind::lease_ended && over.ran() == hotlease::ran::no && !over.retryable());
    CHECK(std::string(over.what()).find("allocate another") != std::string::npos);
    hotlease::invoker other = std::move(invoker);
    const auto moved = failure_of([&] { (void)invoker.function("echo"); });
    CHECK(std::string(moved.what()).find("moved from") != std::string::npos);
    return checks_done();
} catch (const hotlease::error& error) {
    std::printf("    %s\n", error.what());
    return 1;
}
