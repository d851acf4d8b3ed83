// Every error says what happened, whether the function ran, and whether the call is billed. Only functions that are
// declared idempotent are ever run twice.

#include <hotlease/hotlease.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

static const char* word(hotlease::ran ran)
{
    return ran == hotlease::ran::yes ? "ran" : ran == hotlease::ran::no ? "did not run" : "may have run";
}

// Runs `call`, which is expected to fail, and prints its error.
template <class Call>
static void show(const char* what, Call call)
{
    try {
        call();
        std::printf("%s: succeeded\n", what);
    } catch (const hotlease::error& error) {
        std::printf("%s: %s\n    [%s, %s, %s]\n", what, error.what(),
                    hotlease_status_name(static_cast<hotlease_status>(error.kind())), word(error.ran()),
                    error.billed() ? "billed" : "not billed");
    }
}

int main(int argc, char** argv)
try {
    const hotlease::code code{argc > 1 ? argv[1] : "liberrors_functions.so"};
    hotlease::invoker invoker{code};
    const std::vector<int> input{1};

    // Failures before any function runs.
    show("a name that does not exist", [&] { (void)invoker.function("reffuse"); });
    show("a file that is no library", [] { hotlease::code{"/etc/hostname"}; });
    show("more cores than there are", [&] { hotlease::invoker{code, {.slots = 1000}}; });

    // Failures that the function itself reports.
    show("an error of the function", [&] { invoker.function("refuse").call<int>(input); });
    show("a result that does not fit", [&] { invoker.function("verbose").call<char>(input); });

    // A deadline: the function is asked to stop; if it does not stop, it is killed.
    const auto hurried = invoker.function("endless", {.timeout = std::chrono::milliseconds(100)});
    show("a function without end", [&] { hurried.call<char>(input); });

    // A crash ends only the worker: the next call gets a new worker. It is unknown how much the function did before the
    // crash, so the function is not run again.
    show("a crash", [&] { invoker.function("crash").call<int>(input); });

    // A function that may be run twice is run again, and the caller sees only the result.
    const auto file =
        std::filesystem::temp_directory_path() / ("hotlease-unlucky-" + std::to_string(getpid()));
    show("a crash of an idempotent function", [&] {
        const auto said = invoker.function("unlucky").call<char>(file.string());
        std::printf("    it said: %.*s\n", static_cast<int>(said.size()), said.data());
    });
    std::filesystem::remove(file);

    // A call after the lease has ended.
    const hotlease::function refuse = invoker.function("refuse");
    invoker.deallocate();
    show("a call after the end", [&] { refuse.call<int>(input); });
} catch (const hotlease::error& error) {
    std::fprintf(stderr, "errors: %s\n", error.what());
    return 1;
}
