// Scales a photograph down: JPEG in, JPEG out, with libjpeg-turbo.
//
// Scanlines stream from the decoder through an area average into the encoder, so the memory needed is a
// few lines, not the picture. libjpeg scales by eighths while it decodes, which is nearly free; the area average then
// scales to the exact size.
//
// libjpeg reports errors through a callback that must not return (by default it calls exit(), which
// would end the worker). Ours jumps back with longjmp, which skips destructors; therefore every object with a
// destructor is in Job, outside the frame that is jumped into, and `convert` has plain locals only.

#include "thumbnail.h"

#include <hotlease/function.h>

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

extern "C" {
#include <jerror.h>
#include <jpeglib.h>
}

namespace {

constexpr std::uint64_t pixels_max = 256'000'000;
constexpr std::uint32_t edge_px_limit = 4096;
constexpr int channels = 3;

enum class Outcome { done, image, too_large, cancelled };

struct Job {
    jpeg_error_mgr errors; // first: libjpeg hands its address back
    std::jmp_buf recover;
    char message[JMSG_LENGTH_MAX];

    jpeg_decompress_struct decoder;
    jpeg_compress_struct encoder;

    // Destination of the encoder: first `out`; once `out` is full, `spill` again and again, where bytes are only
    // counted, so that the caller can be told the needed size.
    jpeg_destination_mgr destination;
    JOCTET* out;
    std::size_t capacity;
    std::size_t written;
    JOCTET spill[4096];

    std::vector<JSAMPLE> source_line;
    std::vector<float> narrowed_line; // source_line at the thumbnail's width
    std::vector<float> sum;           // of narrowed lines, by how much of each falls into the current line
    std::vector<JSAMPLE> thumbnail_line;

    Job(void* out_bytes, std::size_t out_capacity)
        : message{}, decoder{}, encoder{}, destination{}, out(static_cast<JOCTET*>(out_bytes)),
          capacity(out_capacity), written(0)
    {
        jpeg_std_error(&errors);
        errors.error_exit = fail;
        errors.output_message = [](j_common_ptr) {}; // nothing to standard error
        errors.emit_message = warn;
        decoder.err = &errors;
        encoder.err = &errors;
    }
    ~Job()
    {
        // Both do nothing for a struct that was never created.
        jpeg_destroy_compress(&encoder);
        jpeg_destroy_decompress(&decoder);
    }
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    static Job& of(j_common_ptr jpeg)
    {
        return *reinterpret_cast<Job*>(jpeg->err);
    }
    [[noreturn]] static void fail(j_common_ptr jpeg)
    {
        Job& job = of(jpeg);
        jpeg->err->format_message(jpeg, job.message);
        std::longjmp(job.recover, 1);
    }
    // libjpeg fills a file that was cut short with grey and warns; a grey thumbnail is useless.
    static void warn(j_common_ptr jpeg, int level)
    {
        if (level < 0 && (jpeg->err->msg_code == JWRN_JPEG_EOF || jpeg->err->msg_code == JWRN_HIT_MARKER))
            fail(jpeg);
    }

    static void start_output(j_compress_ptr encoder)
    {
        Job& job = of(reinterpret_cast<j_common_ptr>(encoder));
        const bool spilling = job.capacity == 0; // the encoder wants room for a byte at all times
        job.destination.next_output_byte = spilling ? job.spill : job.out;
        job.destination.free_in_buffer = spilling ? sizeof job.spill : job.capacity;
    }
    static boolean output_full(j_compress_ptr encoder)
    {
        Job& job = of(reinterpret_cast<j_common_ptr>(encoder));
        job.written += job.written < job.capacity ? job.capacity : sizeof job.spill;
        job.destination.next_output_byte = job.spill;
        job.destination.free_in_buffer = sizeof job.spill;
        return TRUE;
    }
    static void end_output(j_compress_ptr encoder)
    {
        Job& job = of(reinterpret_cast<j_common_ptr>(encoder));
        const std::size_t room = job.written < job.capacity ? job.capacity : sizeof job.spill;
        job.written += room - job.destination.free_in_buffer;
    }
};

// The thumbnail's side for an image side, never 0.
std::uint32_t scaled(std::uint32_t side, std::uint32_t longest, std::uint32_t edge_px_max)
{
    if (longest <= edge_px_max)
        return side;
    return std::max<std::uint32_t>(
        1, static_cast<std::uint32_t>((std::uint64_t{side} * edge_px_max + longest / 2) / longest));
}

// Averages a line of `from` pixels to `to` pixels; pixel i covers [i, i + 1) * from / to.
void narrow(const JSAMPLE* source, std::uint32_t from, float* result, std::uint32_t to)
{
    if (from == to) {
        std::copy_n(source, std::size_t{from} * channels, result);
        return;
    }
    const float step = static_cast<float>(from) / static_cast<float>(to);
    for (std::uint32_t i = 0; i < to; ++i) {
        const float begin = static_cast<float>(i) * step;
        const float end = std::min(begin + step, static_cast<float>(from));
        float total[channels] = {};
        float weights = 0;
        auto at = static_cast<std::uint32_t>(begin);
        for (; at < from && static_cast<float>(at) < end; ++at) {
            const float left = std::max(begin, static_cast<float>(at));
            const float covered = std::min(end, static_cast<float>(at + 1)) - left;
            for (int c = 0; c < channels; ++c)
                total[c] += covered * static_cast<float>(source[std::size_t{at} * channels + c]);
            weights += covered;
        }
        for (int c = 0; c < channels; ++c)
            result[std::size_t{i} * channels + c] = weights > 0 ? total[c] / weights : 0;
    }
}

Outcome convert(Job& job, const hotlease_context& context, thumbnail_request request,
                const std::uint8_t* jpeg, std::size_t jpeg_bytes)
{
    if (setjmp(job.recover) != 0)
        return Outcome::image; // job.message says what libjpeg found

    jpeg_create_decompress(&job.decoder);
    jpeg_mem_src(&job.decoder, jpeg, jpeg_bytes);
    jpeg_read_header(&job.decoder, TRUE);
    if (std::uint64_t{job.decoder.image_width} * job.decoder.image_height > pixels_max)
        return Outcome::too_large;

    const std::uint32_t longest = std::max(job.decoder.image_width, job.decoder.image_height);
    const std::uint32_t width = scaled(job.decoder.image_width, longest, request.edge_px_max);
    const std::uint32_t height = scaled(job.decoder.image_height, longest, request.edge_px_max);
    job.decoder.out_color_space = JCS_RGB;
    job.decoder.scale_denom = 8;
    job.decoder.scale_num = 8; // the smallest number of eighths that is not below the thumbnail's size
    for (unsigned eighths = 1; eighths < 8; ++eighths) {
        if (std::uint64_t{job.decoder.image_width} * eighths >= std::uint64_t{width} * 8 &&
            std::uint64_t{job.decoder.image_height} * eighths >= std::uint64_t{height} * 8) {
            job.decoder.scale_num = eighths;
            break;
        }
    }
    jpeg_start_decompress(&job.decoder);
    const std::uint32_t source_width = job.decoder.output_width;
    const std::uint32_t source_height = job.decoder.output_height;

    jpeg_create_compress(&job.encoder);
    job.destination.init_destination = Job::start_output;
    job.destination.empty_output_buffer = Job::output_full;
    job.destination.term_destination = Job::end_output;
    job.encoder.dest = &job.destination;
    job.encoder.image_width = width;
    job.encoder.image_height = height;
    job.encoder.input_components = channels;
    job.encoder.in_color_space = JCS_RGB;
    jpeg_set_defaults(&job.encoder);
    jpeg_set_quality(&job.encoder, static_cast<int>(request.quality), TRUE);
    jpeg_start_compress(&job.encoder, TRUE);

    job.source_line.resize(std::size_t{source_width} * channels);
    job.narrowed_line.resize(std::size_t{width} * channels);
    job.sum.assign(std::size_t{width} * channels, 0.0f);
    job.thumbnail_line.resize(std::size_t{width} * channels);

    // Line `line` of the thumbnail covers source lines [line, line + 1) * source_height / height. In whole
    // numbers: in units of 1 / height of a source line, source line y is [y, y + 1) * height.
    std::uint64_t covered = 0; // of the current thumbnail line, out of source_height
    for (std::uint32_t y = 0; y < source_height; ++y) {
        if (hotlease_cancelled(&context))
            return Outcome::cancelled;
        JSAMPROW source_row = job.source_line.data();
        jpeg_read_scanlines(&job.decoder, &source_row, 1);
        narrow(job.source_line.data(), source_width, job.narrowed_line.data(), width);
        for (std::uint64_t left = height; left > 0;) {
            const std::uint64_t part = std::min<std::uint64_t>(left, source_height - covered);
            const float weight = static_cast<float>(part) / static_cast<float>(source_height);
            for (std::size_t i = 0; i < job.sum.size(); ++i)
                job.sum[i] += weight * job.narrowed_line[i];
            left -= part;
            covered += part;
            if (covered == source_height) {
                for (std::size_t i = 0; i < job.sum.size(); ++i) {
                    const float rounded = std::min(job.sum[i] + 0.5f, 255.0f);
                    job.thumbnail_line[i] = static_cast<JSAMPLE>(rounded);
                    job.sum[i] = 0;
                }
                JSAMPROW thumbnail_row = job.thumbnail_line.data();
                jpeg_write_scanlines(&job.encoder, &thumbnail_row, 1);
                covered = 0;
            }
        }
    }
    jpeg_finish_compress(&job.encoder);
    jpeg_finish_decompress(&job.decoder);
    return Outcome::done;
}

} // namespace

HOTLEASE_FUNCTION(thumbnail);
HOTLEASE_IDEMPOTENT(thumbnail);

std::int32_t thumbnail(hotlease_context* context, const void* in, std::uint64_t size, void* out,
                       std::uint64_t capacity, std::uint64_t* produced)
try {
    const auto refuse = [&](std::int32_t code, const char* why) {
        return hotlease_fail(code, why, out, capacity, produced);
    };
    thumbnail_request request;
    if (size < sizeof request)
        return refuse(THUMBNAIL_REQUEST, "the input is shorter than the request");
    std::memcpy(&request, in, sizeof request);
    if (request.edge_px_max < 1 || request.edge_px_max > edge_px_limit)
        return refuse(THUMBNAIL_REQUEST, "edge_px_max is not between 1 and 4096");
    if (request.quality < 1 || request.quality > 100)
        return refuse(THUMBNAIL_REQUEST, "quality is not between 1 and 100");

    Job job(out, capacity);
    const auto* jpeg = static_cast<const std::uint8_t*>(in) + sizeof request;
    switch (convert(job, *context, request, jpeg, size - sizeof request)) {
    case Outcome::image:
        return refuse(THUMBNAIL_IMAGE, job.message);
    case Outcome::too_large:
        return refuse(THUMBNAIL_TOO_LARGE, "the image has more than 256 million pixels");
    case Outcome::cancelled:
        return refuse(THUMBNAIL_CANCELLED, "the deadline passed");
    case Outcome::done:
        break;
    }
    *produced = job.written; // more than the capacity: the worker tells the caller how much is needed
    return 0;
} catch (const std::bad_alloc&) {
    return hotlease_fail(THUMBNAIL_NO_MEMORY, "out of memory", out, capacity, produced);
}
