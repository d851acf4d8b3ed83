// Makes thumbnails of photographs: here, and on the slots of a lease.
//
//   thumbnails_demo libthumbnail.so results.json OUTPUT_DIRECTORY SLOTS PHOTO.jpg...
//
// Each photograph at several sizes; a thumbnail is one invocation, which gets the whole file.

#include "local_function.hpp"
#include "report.hpp"

#include <thumbnail.h>

#include <hotlease/hotlease.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <numeric>

namespace {

namespace fs = std::filesystem;
using bytes = std::vector<std::byte>;

constexpr std::array<std::uint32_t, 6> edges_px = {512, 384, 256, 192, 128, 96};
constexpr std::uint32_t quality = 85;
constexpr std::size_t thumbnail_bytes_max = 512 << 10;

// An input of the function: the request, directly followed by the file.
bytes request(const bytes& photo, std::uint32_t edge_px)
{
    const thumbnail_request head{edge_px, quality};
    bytes input(sizeof head + photo.size());
    std::memcpy(input.data(), &head, sizeof head);
    std::memcpy(input.data() + sizeof head, photo.data(), photo.size());
    return input;
}

bytes read(const fs::path& path)
{
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file || text.empty())
        throw std::runtime_error("cannot read " + path.string());
    const auto raw = std::as_bytes(std::span(text));
    return {raw.begin(), raw.end()};
}

void write(const fs::path& path, std::span<const std::byte> content)
{
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
    if (!file.flush())
        throw std::runtime_error("cannot write " + path.string());
}

struct arguments {
    std::string library;
    std::string results;
    fs::path output;
    std::uint32_t slots;
    std::vector<fs::path> photos;
};

void demonstrate(const arguments& given)
{
    std::vector<bytes> photos;
    double megabytes = 0;
    for (const fs::path& path : given.photos) {
        photos.push_back(read(path));
        megabytes += static_cast<double>(photos.back().size()) / 1e6;
    }
    std::printf("  %zu photographs, %.1f MB, at %zu sizes each\n", photos.size(), megabytes, edges_px.size());

    // The largest photographs first: at the end no slot then waits long for another one.
    std::vector<std::size_t> order(photos.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return photos[a].size() > photos[b].size(); });
    std::vector<bytes> inputs;
    for (const std::size_t photo : order)
        for (const std::uint32_t edge_px : edges_px)
            inputs.push_back(request(photos[photo], edge_px));
    const double count = static_cast<double>(inputs.size());
    const auto through = [&](const std::string& what, const auto& convert) {
        std::vector<bytes> thumbnails;
        demo::begin(what);
        const double time = demo::seconds([&] { thumbnails = convert(inputs); });
        demo::done(demo::shown(" %5.1f images/s", count / time));
        return std::pair(thumbnails, time);
    };

    demo::local_function local{given.library, "thumbnail"};
    const auto [here, here_s] = through("here, on one core", [&](const std::vector<bytes>& all) {
        std::vector<bytes> thumbnails;
        for (const bytes& input : all) {
            bytes& thumbnail = thumbnails.emplace_back(thumbnail_bytes_max);
            thumbnail.resize(local(input, thumbnail));
        }
        return thumbnails;
    });

    hotlease::invoker invoker{hotlease::code{given.library},
                              {.slots = given.slots, .label = "demo: thumbnails"}};
    const hotlease::function leased = invoker.function("thumbnail", {.output_bytes = thumbnail_bytes_max});
    const std::string slots = std::to_string(given.slots) + (given.slots == 1 ? " leased slot" : " leased slots");
    const auto [there, there_s] = through("on " + slots, [&](const std::vector<bytes>& all) {
        return leased.map<std::byte>(all);
    });
    // Bit by bit: the same function on the same input.
    if (there != here)
        throw std::runtime_error("the worker's thumbnails are not those made here");

    fs::create_directories(given.output);
    for (std::size_t i = 0; i < there.size(); ++i) {
        const fs::path& photo = given.photos[order[i / edges_px.size()]];
        const std::uint32_t edge_px = edges_px[i % edges_px.size()];
        write(given.output / (photo.stem().string() + "-" + std::to_string(edge_px) + ".jpg"), there[i]);
    }
    std::printf("  all %.0f are the same; they are in %s\n", count, given.output.c_str());

    demo::results results;
    results.set("images", count);
    results.set("slots", given.slots);
    results.set("local_per_second", count / here_s);
    results.set("leased_per_second", count / there_s);
    results.write(given.results);
    invoker.deallocate();
}

} // namespace

int main(int argc, char** argv)
{
    if (argc < 6) {
        std::cerr << "usage: thumbnails_demo libthumbnail.so results.json OUTPUT_DIRECTORY SLOTS PHOTO.jpg...\n";
        return 2;
    }
    try {
        demonstrate({argv[1], argv[2], argv[3], static_cast<std::uint32_t>(std::stoul(argv[4])),
                     {argv + 5, argv + argc}});
    } catch (const std::exception& failure) {
        std::cerr << "\nthumbnails_demo: " << failure.what() << '\n';
        return 1;
    }
}
