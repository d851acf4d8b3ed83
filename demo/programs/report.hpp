// Progress lines of the demonstration's programs, and the results that they write for the summary.
#ifndef HOTLEASE_DEMO_REPORT_HPP
#define HOTLEASE_DEMO_REPORT_HPP

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace demo {

// Wall-clock seconds of one run of `work`.
template <class Work>
double seconds(Work&& work)
{
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
}

// A line that names a step, and then its result.
inline void begin(const std::string& what)
{
    std::printf("  %-58s", what.c_str());
    std::fflush(stdout);
}

inline void done(const std::string& how)
{
    std::printf(" %s\n", how.c_str());
    std::fflush(stdout);
}

inline std::string shown(const char* format, double value)
{
    char text[64];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

// Named numbers, written as one JSON object.
class results {
public:
    void set(const std::string& name, double value) { values_.emplace_back(name, value); }
    void write(const std::string& path) const
    {
        std::ofstream file(path);
        const char* separator = "{";
        for (const auto& [name, value] : values_) {
            file << separator << '"' << name << "\": " << shown("%.9g", value);
            separator = ", ";
        }
        file << (values_.empty() ? "{}\n" : "}\n");
        if (!file.flush())
            throw std::runtime_error("cannot write " + path);
    }

private:
    std::vector<std::pair<std::string, double>> values_;
};

} // namespace demo

#endif
