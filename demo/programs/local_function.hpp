// A function library run in this process, for comparison with the leased worker.
#ifndef HOTLEASE_DEMO_LOCAL_FUNCTION_HPP
#define HOTLEASE_DEMO_LOCAL_FUNCTION_HPP

#include <hotlease/function.h>

#include <dlfcn.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace demo {

// A function of the context interface, loaded with dlopen as a worker does.
class local_function {
public:
    local_function(const std::string& library, const std::string& name)
        : library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL))
    {
        if (library_ == nullptr)
            throw std::runtime_error(dlerror());
        function_ = reinterpret_cast<hotlease_context_function>(dlsym(library_, name.c_str()));
        if (function_ == nullptr)
            throw std::runtime_error(library + " has no function " + name);
    }
    ~local_function() { dlclose(library_); }
    local_function(const local_function&) = delete;
    local_function& operator=(const local_function&) = delete;

    // Returns how many bytes it wrote.
    std::size_t operator()(std::span<const std::byte> in, std::span<std::byte> out)
    {
        hotlease_context context{};
        context.struct_size = sizeof context;
        context.slots = 1;
        context.tenant = "local";
        context.cancelled = &never_;
        context.state = &state_;
        context.scratch = scratch_.data();
        context.scratch_bytes = scratch_.size();
        std::uint64_t produced = 0;
        const std::int32_t code =
            function_(&context, in.data(), in.size(), out.data(), out.size(), &produced);
        if (code != 0 || produced > out.size())
            throw std::runtime_error("the function failed here with number " + std::to_string(code));
        return static_cast<std::size_t>(produced);
    }

private:
    void* library_;
    hotlease_context_function function_ = nullptr;
    const volatile std::uint32_t never_ = 0;
    void* state_ = nullptr;
    std::vector<std::byte> scratch_ = std::vector<std::byte>(64 << 10);
};

} // namespace demo

#endif
