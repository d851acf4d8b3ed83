/* Every collective of communicator.h, waiting and non-blocking, compared with a plain reference. Needs no platform. */

#include "members.h"

enum { COUNT_MAX = 3000, ELEMENTS = RANKS_MAX * (COUNT_MAX + RANKS_MAX) };

/* Element `i` of rank `rank`: small, so that sums and products by sign stay exact. */
static int64_t value(uint32_t rank, size_t i)
{
    return (int64_t)((rank * 31 + i * 7) % 101) - 50;
}

/* One variant of the calls: with this many elements, waiting or not. */
struct way {
    hotlease_comm* comm;
    uint32_t rank, size;
    size_t count;
    int waits;
    int64_t *in, *out;
};

/* Fills the input with this rank's values, and the output with a value that is wrong everywhere. */
static void prepare(const struct way* way, size_t elements)
{
    for (size_t i = 0; i < elements; i++)
        way->in[i] = value(way->rank, i);
    for (size_t i = 0; i < ELEMENTS; i++)
        way->out[i] = -999;
}

static void expect(const struct way* way, const char* operation, hotlease_status status, hotlease_error* error,
                   int is_right)
{
    if (status != HOTLEASE_OK || !is_right)
        printf("    %s, rank %u of %u, %zu elements, waits: %d: %s\n", operation, way->rank, way->size,
               way->count, way->waits,
               status != HOTLEASE_OK ? hotlease_error_message(error) : "another result");
    EXPECT(status == HOTLEASE_OK && is_right);
    hotlease_error_free(error);
}

/* Calls hotlease_comm_NAME or hotlease_comm_iNAME, and checks its result for each element of [0, total). */
#define COLLECTIVE(way, NAME, total, expected, ...)                                                       \
    do {                                                                                                  \
        hotlease_error* error = NULL;                                                                     \
        hotlease_comm_request* request = NULL;                                                            \
        hotlease_status status = (way)->waits                                                             \
                                     ? hotlease_comm_##NAME((way)->comm, __VA_ARGS__, &error)             \
                                     : hotlease_comm_i##NAME((way)->comm, __VA_ARGS__, &request, &error); \
        if (request != NULL)                                                                              \
            status = hotlease_comm_wait(request, NULL, &error);                                           \
        int is_right = 1;                                                                                 \
        for (size_t i = 0; i < (total) && is_right; i++)                                                  \
            is_right = (way)->out[i] == (expected);                                                       \
        is_right = is_right && (way)->out[total] == -999;                                                 \
        expect(way, #NAME, status, error, is_right);                                                      \
    } while (0)

/* The sum of element i of ranks [0, end). */
static int64_t sum(uint32_t end, size_t i)
{
    int64_t total = 0;
    for (uint32_t rank = 0; rank < end; rank++)
        total += value(rank, i);
    return total;
}

static void equal_blocks(const struct way* way, uint32_t root)
{
    const size_t n = way->count, all = n * way->size, at_root = way->rank == root ? all : 0;
    int64_t *in = way->in, *out = way->out;
    const int is_root = way->rank == root;

    prepare(way, n);
    COLLECTIVE(way, gather, at_root, value((uint32_t)(i / n), i % n), in, is_root ? out : NULL, n,
               HOTLEASE_COMM_I64, root);
    prepare(way, all);
    COLLECTIVE(way, scatter, n, value(root, way->rank * n + i), is_root ? in : NULL, out, n, HOTLEASE_COMM_I64,
               root);
    prepare(way, n);
    COLLECTIVE(way, allgather, all, value((uint32_t)(i / n), i % n), in, out, n, HOTLEASE_COMM_I64);
    prepare(way, all);
    COLLECTIVE(way, alltoall, all, value((uint32_t)(i / n), way->rank * n + i % n), in, out, n,
               HOTLEASE_COMM_I64);
    prepare(way, n);
    for (size_t i = 0; is_root && i < n; i++)
        out[i] = in[i];
    COLLECTIVE(way, broadcast, n, value(root, i), out, n, HOTLEASE_COMM_I64, root);

    /* In place: the contribution is where the result, or its block, will be. */
    prepare(way, n);
    for (size_t i = 0; is_root && i < n; i++)
        out[root * n + i] = in[i];
    COLLECTIVE(way, gather, at_root, value((uint32_t)(i / n), i % n), is_root ? HOTLEASE_COMM_IN_PLACE : in,
               out, n, HOTLEASE_COMM_I64, root);
    prepare(way, n);
    for (size_t i = 0; i < n; i++)
        out[way->rank * n + i] = in[i];
    COLLECTIVE(way, allgather, all, value((uint32_t)(i / n), i % n), HOTLEASE_COMM_IN_PLACE, out, n,
               HOTLEASE_COMM_I64);
    prepare(way, all);
    memcpy(out, in, all * sizeof *in);
    COLLECTIVE(way, alltoall, all, value((uint32_t)(i / n), way->rank * n + i % n), HOTLEASE_COMM_IN_PLACE, out,
               n, HOTLEASE_COMM_I64);
    prepare(way, all);
    COLLECTIVE(way, scatter, is_root ? 0 : n, value(root, way->rank * n + i), is_root ? in : NULL,
               is_root ? HOTLEASE_COMM_IN_PLACE : out, n, HOTLEASE_COMM_I64, root);
}

static void reductions(const struct way* way, uint32_t root)
{
    const size_t n = way->count, at_root = way->rank == root ? n : 0;
    int64_t *in = way->in, *out = way->out;
    const uint32_t rank = way->rank, size = way->size;

    prepare(way, n);
    COLLECTIVE(way, reduce, at_root, sum(size, i), in, out, n, HOTLEASE_COMM_I64, HOTLEASE_COMM_SUM, root);
    prepare(way, n);
    COLLECTIVE(way, allreduce, n, sum(size, i), in, out, n, HOTLEASE_COMM_I64, HOTLEASE_COMM_SUM);
    prepare(way, n);
    COLLECTIVE(way, scan, n, sum(rank + 1, i), in, out, n, HOTLEASE_COMM_I64, HOTLEASE_COMM_SUM);
    prepare(way, n);
    COLLECTIVE(way, exscan, rank == 0 ? 0 : n, sum(rank, i), in, out, n, HOTLEASE_COMM_I64, HOTLEASE_COMM_SUM);
    prepare(way, n * size);
    COLLECTIVE(way, reduce_scatter_block, n, sum(size, rank * n + i), in, out, n, HOTLEASE_COMM_I64,
               HOTLEASE_COMM_SUM);

    prepare(way, n);
    memcpy(out, in, n * sizeof *in);
    COLLECTIVE(way, allreduce, n, sum(size, i), HOTLEASE_COMM_IN_PLACE, out, n, HOTLEASE_COMM_I64,
               HOTLEASE_COMM_SUM);
    prepare(way, n);
    memcpy(out, in, n * sizeof *in);
    COLLECTIVE(way, scan, n, sum(rank + 1, i), HOTLEASE_COMM_IN_PLACE, out, n, HOTLEASE_COMM_I64,
               HOTLEASE_COMM_SUM);
}

/* Rank r has n + r elements, or none if n is odd and r is 1; with a gap of one before each, or without gaps. */
struct blocks {
    size_t counts[RANKS_MAX], places[RANKS_MAX];
};

static struct blocks blocks_of(const struct way* way, size_t gap)
{
    struct blocks blocks = {0};
    for (uint32_t rank = 0; rank < way->size; rank++) {
        blocks.counts[rank] = rank == 1 && way->count % 2 ? 0 : way->count + rank;
        blocks.places[rank] = gap + (rank ? blocks.places[rank - 1] + blocks.counts[rank - 1] : 0);
    }
    return blocks;
}

/* The value at place i of such blocks, in which element k of rank r is `value(r, k)`; -999 in gaps. */
static int64_t placed(const struct blocks* blocks, uint32_t size, size_t i)
{
    for (uint32_t rank = 0; rank < size; rank++)
        if (i >= blocks->places[rank] && i < blocks->places[rank] + blocks->counts[rank])
            return value(rank, i - blocks->places[rank]);
    return -999;
}

static void uneven_blocks(const struct way* way, uint32_t root)
{
    const uint32_t rank = way->rank, size = way->size;
    int64_t *in = way->in, *out = way->out;
    const int is_root = rank == root;
    for (size_t gap = 0; gap < 2; gap++) {
        const struct blocks blocks = blocks_of(way, gap);
        const size_t own = blocks.counts[rank], total = blocks.places[size - 1] + blocks.counts[size - 1];
        const size_t* places = gap ? blocks.places : NULL;

        prepare(way, own);
        COLLECTIVE(way, gatherv, is_root ? total : 0, placed(&blocks, size, i), in, own, out,
                   is_root ? blocks.counts : NULL, is_root ? places : NULL, HOTLEASE_COMM_I64, root);
        prepare(way, own);
        COLLECTIVE(way, allgatherv, total, placed(&blocks, size, i), in, out, blocks.counts, places,
                   HOTLEASE_COMM_I64);
        prepare(way, total);
        COLLECTIVE(way, scatterv, own, value(root, blocks.places[rank] + i), in, is_root ? blocks.counts : NULL,
                   is_root ? places : NULL, out, own, HOTLEASE_COMM_I64, root);
        prepare(way, own);
        for (size_t i = 0; is_root && i < own; i++)
            out[blocks.places[root] + i] = in[i];
        COLLECTIVE(way, gatherv, is_root ? total : 0, placed(&blocks, size, i),
                   is_root ? HOTLEASE_COMM_IN_PLACE : in, is_root ? 12345 : own, out, blocks.counts, places,
                   HOTLEASE_COMM_I64, root);

        /* Each rank sends its block r, as long as rank r's, to rank r: so r gets `size` blocks of its own length. */
        struct blocks received = {0};
        for (uint32_t from = 0; from < size; from++) {
            received.counts[from] = own;
            received.places[from] = from * own;
        }
        prepare(way, total);
        COLLECTIVE(way, alltoallv, own * size, value((uint32_t)(i / own), blocks.places[rank] + i % own), in,
                   blocks.counts, places, out, received.counts, gap ? received.places : NULL,
                   HOTLEASE_COMM_I64);
        if (!gap) {
            prepare(way, total);
            COLLECTIVE(way, reduce_scatter, own, sum(size, blocks.places[rank] + i), in, out, blocks.counts,
                       HOTLEASE_COMM_I64, HOTLEASE_COMM_SUM);
        }
    }
}

static void every_collective(hotlease_comm* comm)
{
    static const size_t counts[] = {0, 1, 4, COUNT_MAX};
    struct way way = {.comm = comm, .rank = hotlease_comm_rank(comm), .size = hotlease_comm_size(comm)};
    way.in = malloc(ELEMENTS * sizeof *way.in);
    way.out = malloc(ELEMENTS * sizeof *way.out);
    if (way.in == NULL || way.out == NULL)
        abort();
    for (way.waits = 0; way.waits < 2; way.waits++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            const uint32_t root = (uint32_t)(i + way.size - 1) % way.size;
            way.count = counts[i];
            equal_blocks(&way, root);
            reductions(&way, root);
            uneven_blocks(&way, root);
        }
    EXPECT(hotlease_comm_barrier(comm, NULL) == HOTLEASE_OK);
    hotlease_comm_request* request = NULL;
    EXPECT(hotlease_comm_ibarrier(comm, &request, NULL) == HOTLEASE_OK);
    EXPECT(hotlease_comm_wait(request, NULL, NULL) == HOTLEASE_OK);
    EXPECT(hotlease_comm_finish(comm, NULL) == HOTLEASE_OK);
    free(way.in);
    free(way.out);
}

int main(void)
{
    meet();
    for (uint32_t size = 1; size <= RANKS_MAX; size++)
        each(size, every_collective);
    hotlease_comm_rendezvous_free(meeting);
    return checks_done();
}
