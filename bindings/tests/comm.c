/* communicator.h except the results of collectives: messages, operators, parts, and failures. Needs no platform.
 *
 * Run again as `comm ADDRESS` it is a member of two that dies without notice. */

#include "calls.h"
#include "members.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

/* ---- Messages ---- */

static void messages(hotlease_comm* comm)
{
    const uint32_t rank = hotlease_comm_rank(comm), other = 1 - rank;
    hotlease_comm_message got = {77, 77, 77};
    static const size_t sizes[] = {0, 1, 20000, 3000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        /* Both send first, at any size. */
        unsigned char *out = calloc(1, sizes[i] + 1), *in = calloc(1, sizes[i] + 1);
        if (out == NULL || in == NULL)
            abort();
        memset(out, (int)(rank + 3), sizes[i]);
        WORKS(hotlease_comm_send(comm, out, sizes[i], other, 5, &error));
        WORKS(hotlease_comm_recv(comm, in, sizes[i], other, 5, &got, &error));
        EXPECT(got.source == other && got.tag == 5 && got.size == sizes[i]);
        EXPECT(sizes[i] == 0 || (in[0] == other + 3 && in[sizes[i] - 1] == other + 3 && in[sizes[i]] == 0));
        memset(in, 0, sizes[i]);
        WORKS(hotlease_comm_sendrecv(comm, out, sizes[i], other, 6, in, sizes[i], HOTLEASE_COMM_ANY, 6, NULL,
                                     &error));
        EXPECT(sizes[i] == 0 || (in[0] == other + 3 && in[sizes[i] - 1] == other + 3));
        free(out);
        free(in);
    }

    /* Three bytes are never received as two and one; a waiting message can be probed. */
    char three[3] = "abc", two[2] = {0};
    int found = 77;
    WORKS(hotlease_comm_send(comm, three, 3, other, 8, &error));
    WORKS(hotlease_comm_probe(comm, HOTLEASE_COMM_ANY, 8, &got, &error));
    EXPECT(got.source == other && got.size == 3);
    hotlease_error* error = NULL;
    EXPECT(hotlease_comm_recv(comm, two, 2, other, 8, NULL, &error) == HOTLEASE_OUTPUT_TOO_LARGE);
    EXPECT(hotlease_error_needed(error) == 3 && hotlease_error_rank(error) == other && two[0] == 0);
    hotlease_error_free(error);
    WORKS(hotlease_comm_iprobe(comm, other, HOTLEASE_COMM_ANY, &found, &got, &error));
    EXPECT(found == 1 && got.tag == 8);
    WORKS(hotlease_comm_recv(comm, three, 3, other, HOTLEASE_COMM_ANY, &got, &error));
    WORKS(hotlease_comm_iprobe(comm, other, 8, &found, NULL, &error));
    EXPECT(found == 0);

    FAILS(hotlease_comm_send(comm, three, 3, 2, 0, &error), HOTLEASE_INVALID_ARGUMENT, -1, "no rank 2");
    FAILS(hotlease_comm_recv(comm, three, 3, 2, 0, NULL, &error), HOTLEASE_INVALID_ARGUMENT, -1, "no rank 2");
    FAILS(hotlease_comm_recv(comm, three, 3, -2, 0, NULL, &error), HOTLEASE_INVALID_ARGUMENT, -1,
          "source cannot be -2");
    FAILS(hotlease_comm_probe(comm, 0, (int64_t)1 << 32, &got, &error), HOTLEASE_INVALID_ARGUMENT, -1,
          "tag cannot be");
    FAILS(hotlease_comm_send(comm, NULL, 3, other, 0, &error), HOTLEASE_INVALID_ARGUMENT, -1, "bytes is NULL");
    FAILS(hotlease_comm_recv(comm, NULL, 3, other, 0, NULL, &error), HOTLEASE_INVALID_ARGUMENT, -1,
          "bytes is NULL");
    FAILS(hotlease_comm_sendrecv(comm, three, 3, other, 0, three + 1, 2, other, 0, NULL, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "bytes and into overlap");
    FAILS(hotlease_comm_iprobe(comm, 0, 0, NULL, NULL, &error), HOTLEASE_INVALID_ARGUMENT, -1, "found is NULL");
    FAILS(hotlease_comm_isend(comm, three, 3, other, 0, NULL, &error), HOTLEASE_INVALID_ARGUMENT, -1,
          "request is NULL");
    WORKS(hotlease_comm_finish(comm, &error));
}

/* ---- Operators ---- */

struct user {
    int calls, released, refuses;
};

/* 2 by 2 matrices: an associative product that does not commute. */
struct matrix {
    int64_t a, b, c, d;
};

static struct matrix product_of(struct matrix l, struct matrix r)
{
    return (struct matrix){l.a * r.a + l.b * r.c, l.a * r.b + l.b * r.d, l.c * r.a + l.d * r.c,
                           l.c * r.b + l.d * r.d};
}

static int multiply(void* user, const void* first, void* second, size_t count, hotlease_comm_datatype datatype)
{
    struct user* self = user;
    const struct matrix* left = first;
    struct matrix* right = second;
    __atomic_add_fetch(&self->calls, 1, __ATOMIC_RELAXED);
    if (self->refuses || datatype != HOTLEASE_COMM_RECORD(sizeof *left))
        return 42;
    for (size_t i = 0; i < count; i++)
        right[i] = product_of(left[i], right[i]);
    return 0;
}

static void release(void* user)
{
    ((struct user*)user)->released++;
}

static void operators(hotlease_comm* comm)
{
    enum { COUNT = 700 };
    const uint32_t rank = hotlease_comm_rank(comm), size = hotlease_comm_size(comm);
    struct user user = {0, 0, 0};
    hotlease_comm_operator* product = NULL;
    WORKS(hotlease_comm_operator_create(multiply, &user, release, 0, &product, &error));
    const hotlease_comm_datatype matrix = HOTLEASE_COMM_RECORD(sizeof(struct matrix));
    struct matrix in[COUNT], out[COUNT], expected[COUNT];
    for (int i = 0; i < COUNT; i++)
        for (uint32_t r = 0; r < size; r++) {
            const struct matrix next = {1, r + 1, i % 3, i % 2};
            if (r == rank)
                in[i] = next;
            expected[i] = r == 0 ? next : product_of(expected[i], next);
        }
    WORKS(hotlease_comm_allreduce(comm, in, out, COUNT, matrix, product, &error));
    EXPECT(memcmp(out, expected, sizeof expected) == 0);
    /* Freed at once: the collective keeps it until its end. */
    hotlease_comm_request* request = NULL;
    memset(out, 0, sizeof out);
    WORKS(hotlease_comm_iallreduce(comm, in, out, COUNT, matrix, product, &request, &error));
    hotlease_comm_operator_free(product);
    WORKS(hotlease_comm_wait(request, NULL, &error));
    /* The algorithm decides which rank combines; some rank does. */
    int64_t calls = user.calls, of_all = 0;
    WORKS(hotlease_comm_allreduce(comm, &calls, &of_all, 1, HOTLEASE_COMM_I64, HOTLEASE_COMM_SUM, &error));
    EXPECT(memcmp(out, expected, sizeof expected) == 0 && of_all > 0);

    int64_t number = 1, total = 0;
    FAILS(hotlease_comm_allreduce(comm, &number, &total, 1, HOTLEASE_COMM_BOOL, HOTLEASE_COMM_SUM, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "sum of bool");
    FAILS(hotlease_comm_allreduce(comm, &number, &total, 1, 99, HOTLEASE_COMM_SUM, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "datatype: 99");
    FAILS(hotlease_comm_allreduce(comm, &number, &total, 1, HOTLEASE_COMM_I64, NULL, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "op is NULL");
    /* These calls sent nothing, so all can go on. */
    WORKS(hotlease_comm_allreduce(comm, &number, &total, 1, HOTLEASE_COMM_I64, HOTLEASE_COMM_SUM, &error));
    EXPECT(total == size);

    /* An operator that fails, which harms no other communicator. */
    struct user unwilling = {0, 0, 1};
    hotlease_comm* same = NULL;
    WORKS(hotlease_comm_dup(comm, &same, &error));
    WORKS(hotlease_comm_operator_create(multiply, &unwilling, release, 1, &product, &error));
    hotlease_error* error = NULL;
    const hotlease_status status = hotlease_comm_allreduce(same, in, out, 1, matrix, product, &error);
    EXPECT(status == HOTLEASE_OPERATOR_FAILED || status == HOTLEASE_MISMATCH);
    EXPECT(status != HOTLEASE_OPERATOR_FAILED || strstr(hotlease_error_message(error), "returned 42") != NULL);
    hotlease_error_free(error);
    hotlease_comm_operator_free(product);
    hotlease_comm_free(same);
    WORKS(hotlease_comm_barrier(comm, &error));
    hotlease_comm_free(comm);
    EXPECT(unwilling.released == 1 && user.released == 1);
}

/* ---- Arguments of collectives ---- */

static void arguments(hotlease_comm* comm)
{
    const uint32_t size = hotlease_comm_size(comm);
    double in[8] = {0}, out[8] = {0};
    const size_t counts[2] = {2, 2}, overlap[2] = {0, 1}, outside[2] = {0, SIZE_MAX};
    hotlease_comm_request* request = NULL;
    FAILS(hotlease_comm_allreduce(comm, in, in + 1, 2, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "overlap");
    FAILS(hotlease_comm_allreduce(comm, in, HOTLEASE_COMM_IN_PLACE, 2, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM,
                                  &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "IN_PLACE");
    FAILS(hotlease_comm_reduce(comm, HOTLEASE_COMM_IN_PLACE, out, 2, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM,
                               1 - hotlease_comm_rank(comm), &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "at the root only");
    FAILS(hotlease_comm_allreduce(comm, NULL, out, 2, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "input is NULL");
    FAILS(hotlease_comm_iallreduce(comm, in, NULL, 2, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, &request, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "output is NULL");
    FAILS(hotlease_comm_iallreduce(comm, in, out, 2, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, NULL, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "request is NULL");
    FAILS(hotlease_comm_allreduce(comm, in, out, SIZE_MAX / 4, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "");
    FAILS(hotlease_comm_broadcast(comm, in, 1, HOTLEASE_COMM_F64, size, &error), HOTLEASE_INVALID_ARGUMENT, -1,
          "root");
    FAILS(hotlease_comm_allgatherv(comm, in, out, NULL, NULL, HOTLEASE_COMM_F64, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "counts is NULL");
    FAILS(hotlease_comm_allgatherv(comm, in, out, counts, overlap, HOTLEASE_COMM_F64, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "overlap");
    FAILS(hotlease_comm_allgatherv(comm, in, out, counts, outside, HOTLEASE_COMM_F64, &error),
          HOTLEASE_INVALID_ARGUMENT, -1, "");
    EXPECT(request == NULL);

    /* Counts that do not match are reported to all ranks, and no later collective succeeds. */
    const hotlease_status status = hotlease_comm_allreduce(comm, in, out, 1 + hotlease_comm_rank(comm),
                                                           HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, NULL);
    EXPECT(status == HOTLEASE_MISMATCH);
    EXPECT(hotlease_comm_barrier(comm, NULL) != HOTLEASE_OK);
    hotlease_comm_free(comm);
}

/* In checked mode all ranks learn what two of them call, and where. */
static void checked(hotlease_comm* comm)
{
    const uint32_t rank = hotlease_comm_rank(comm);
    double in = 1, out = 0;
    hotlease_comm_at(rank == 0 ? "left.c:10" : "right.c:20");
    FAILS(rank == 0 ? hotlease_comm_allreduce(comm, &in, &out, 1, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, &error)
                    : hotlease_comm_allreduce(comm, &in, &out, 1, HOTLEASE_COMM_I64, HOTLEASE_COMM_SUM, &error),
          HOTLEASE_MISMATCH, 1, "left.c:10");
    hotlease_comm_at(NULL);
    FAILS(rank == 0 ? hotlease_comm_barrier(comm, &error)
                    : hotlease_comm_broadcast(comm, &in, 1, HOTLEASE_COMM_F64, 0, &error),
          HOTLEASE_MISMATCH, 1, "hotlease_comm_at");
    WORKS(hotlease_comm_allreduce(comm, &in, &out, 1, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, &error));
    EXPECT(out == 2);
    hotlease_comm_free(comm);
}

/* ---- Parts ---- */

static void parts(hotlease_comm* comm)
{
    const uint32_t rank = hotlease_comm_rank(comm), size = hotlease_comm_size(comm);
    hotlease_comm *half = NULL, *same = NULL, *none = comm;
    WORKS(hotlease_comm_split(comm, rank % 2, -(int64_t)rank, &half, &error));
    EXPECT(hotlease_comm_size(half) == (size + 1 - rank % 2) / 2);
    EXPECT(hotlease_comm_rank(half) == hotlease_comm_size(half) - 1 - rank / 2);
    WORKS(hotlease_comm_split(comm, rank == 0 ? 7 : HOTLEASE_COMM_NONE, 0, &none, &error));
    EXPECT((none != NULL) == (rank == 0) && (none == NULL || hotlease_comm_size(none) == 1));
    WORKS(hotlease_comm_dup(comm, &same, &error));
    EXPECT(hotlease_comm_rank(same) == rank && hotlease_comm_size(same) == size);
    FAILS(hotlease_comm_split(comm, -2, 0, &none, &error), HOTLEASE_INVALID_ARGUMENT, -1, "color cannot be -2");

    /* A message sent in one is not received in another. */
    const uint32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    uint32_t a = 1, b = 2, got = 0;
    WORKS(hotlease_comm_send(comm, &a, 4, next, 0, &error));
    WORKS(hotlease_comm_send(same, &b, 4, next, 0, &error));
    WORKS(hotlease_comm_recv(same, &got, 4, before, 0, NULL, &error));
    EXPECT(got == 2);
    WORKS(hotlease_comm_recv(comm, &got, 4, before, 0, NULL, &error));
    EXPECT(got == 1);
    uint32_t sum = 0;
    WORKS(hotlease_comm_allreduce(half, &rank, &sum, 1, HOTLEASE_COMM_U32, HOTLEASE_COMM_SUM, &error));
    uint32_t expected = 0;
    for (uint32_t other = rank % 2; other < size; other += 2)
        expected += other;
    EXPECT(sum == expected);
    WORKS(hotlease_comm_finish(comm, &error)); /* in any order */
    WORKS(hotlease_comm_barrier(same, &error));
    hotlease_comm_free(half);
    hotlease_comm_free(none);
    WORKS(hotlease_comm_finish(same, &error));
}

/* One gives up; the others learn which and why, and go on without it; then a new one joins. */
static void fewer_and_more(hotlease_comm* comm)
{
    const uint32_t rank = hotlease_comm_rank(comm), size = hotlease_comm_size(comm);
    if (rank == 1) {
        hotlease_comm_abort(comm);
        hotlease_comm_options options = options_of("members", size);
        options.newcomer = 1;
        hotlease_comm* back = NULL;
        WORKS(hotlease_comm_join(&options, &back, &error));
        EXPECT(hotlease_comm_rank(back) == size - 1);
        WORKS(hotlease_comm_barrier(back, &error));
        WORKS(hotlease_comm_finish(back, &error));
        return;
    }
    char byte = 0;
    hotlease_error* error = NULL;
    EXPECT(hotlease_comm_recv(comm, &byte, 1, 1, 0, NULL, &error) == HOTLEASE_MEMBER_LOST);
    EXPECT(hotlease_error_rank(error) == 1 && strstr(hotlease_error_cause(error), "gave up") != NULL);
    EXPECT(strstr(hotlease_error_message(error), hotlease_error_cause(error)) != NULL);
    hotlease_error_free(error);
    hotlease_comm *smaller = NULL, *larger = NULL;
    WORKS(hotlease_comm_shrink(comm, &smaller, &error));
    EXPECT(hotlease_comm_size(smaller) == size - 1 &&
           hotlease_comm_rank(smaller) == (rank > 1 ? rank - 1 : rank));
    WORKS(hotlease_comm_grow(smaller, 1, &larger, &error));
    EXPECT(hotlease_comm_size(larger) == size && hotlease_comm_rank(larger) == hotlease_comm_rank(smaller));
    WORKS(hotlease_comm_barrier(larger, &error));
    hotlease_comm_free(smaller);
    WORKS(hotlease_comm_finish(larger, &error));
    hotlease_comm_free(comm);
}

/* ---- Joining ---- */

static void joining(void)
{
    hotlease_comm* comm = NULL;
    hotlease_comm_options options = options_of("alone", 2);
    options.join_timeout_ms = 2000; /* enough time to be admitted */
    FAILS(hotlease_comm_join(&options, &comm, &error), HOTLEASE_NOT_TOGETHER, -1, "rank 1 of 2");
    hotlease_error* error = NULL;
    EXPECT(hotlease_comm_join(&options, &comm, &error) == HOTLEASE_NOT_TOGETHER);
    EXPECT(strstr(hotlease_error_cause(error), "did not come") != NULL);
    hotlease_error_free(error);
    options.secret = "another secret of theirs";
    options.secret_size = 24;
    FAILS(hotlease_comm_join(&options, &comm, &error), HOTLEASE_REFUSED, -1, "another secret");
    options.secret_size = 3;
    FAILS(hotlease_comm_join(&options, &comm, &error), HOTLEASE_INVALID_ARGUMENT, -1, "3 bytes");
    options = options_of("alone", 2);
    options.rank = 2;
    options.has_rank = 1;
    FAILS(hotlease_comm_join(&options, &comm, &error), HOTLEASE_INVALID_ARGUMENT, -1, "rank 2 of 2");
    options.struct_size = 4;
    FAILS(hotlease_comm_join(&options, &comm, &error), HOTLEASE_INVALID_ARGUMENT, -1, "struct_size");

    /* Values that are not given come from the environment. */
    FAILS(hotlease_comm_join(NULL, &comm, &error), HOTLEASE_INVALID_ARGUMENT, -1, "HOTLEASE_COMM_NAME");
    setenv("HOTLEASE_COMM_NAME", "alone", 1);
    setenv("HOTLEASE_COMM_RENDEZVOUS", hotlease_comm_rendezvous_address(meeting), 1);
    setenv("HOTLEASE_COMM_SIZE", "one", 1);
    FAILS(hotlease_comm_join(NULL, &comm, &error), HOTLEASE_INVALID_ARGUMENT, -1, "HOTLEASE_COMM_SIZE");
    setenv("HOTLEASE_COMM_SIZE", "1", 1);
    FAILS(hotlease_comm_join(NULL, &comm, &error), HOTLEASE_INVALID_ARGUMENT, -1, "HOTLEASE_COMM_SECRET");
    setenv("HOTLEASE_COMM_SECRET", SECRET, 1);
    setenv("HOTLEASE_COMM_LINK", "auto", 1);
    FAILS(hotlease_comm_join(NULL, &comm, &error), HOTLEASE_INVALID_ARGUMENT, -1, "HOTLEASE_COMM_LINKS");
    setenv("HOTLEASE_COMM_LINKS", "tcp,direct", 1);
    WORKS(hotlease_comm_join(NULL, &comm, &error));
    EXPECT(hotlease_comm_size(comm) == 1 && strcmp(hotlease_comm_name(comm), "alone") == 0);
    EXPECT(strcmp(hotlease_comm_link(comm), "tcp") == 0);
    unsetenv("HOTLEASE_COMM_LINK");
    WORKS(hotlease_comm_finish(comm, &error));
    hotlease_comm_rendezvous* second = NULL;
    WORKS(hotlease_comm_rendezvous_start("127.0.0.1:0", NULL, 0, &second, &error));
    hotlease_comm_rendezvous_free(second);
    FAILS(
        hotlease_comm_rendezvous_start(hotlease_comm_rendezvous_address(meeting), SECRET, 16, &second, &error),
        HOTLEASE_LOCAL, -1, "listen");
    setenv("HOTLEASE_COMM_SECRET", "short", 1);
    FAILS(hotlease_comm_rendezvous_start("127.0.0.1:0", NULL, 0, &second, &error), HOTLEASE_INVALID_ARGUMENT,
          -1, "5 bytes");
    setenv("HOTLEASE_COMM_SECRET", SECRET, 1);
    FAILS(hotlease_comm_rendezvous_start("nowhere", NULL, 0, &second, &error), HOTLEASE_LOCAL, -1, "listen");
}

/* ---- A process that is killed ---- */

static int victim(const char* address)
{
    hotlease_comm_options options = {.struct_size = sizeof options,
                                     .name = "killed",
                                     .rendezvous = address,
                                     .secret = SECRET,
                                     .secret_size = sizeof SECRET - 1,
                                     .size = 2,
                                     .has_rank = 1,
                                     .rank = 1};
    hotlease_comm* comm = NULL;
    if (hotlease_comm_join(&options, &comm, NULL) != HOTLEASE_OK)
        return 1;
    double number = 1;
    (void)hotlease_comm_recv(comm, &number, sizeof number, 0, 0, NULL, NULL);
    raise(SIGKILL);
    return 1;
}

static void killed(char* self)
{
    char* arguments[] = {self, (char*)hotlease_comm_rendezvous_address(meeting), NULL};
    pid_t pid = 0;
    EXPECT(posix_spawn(&pid, self, NULL, NULL, arguments, environ) == 0);
    hotlease_comm_options options = options_of("killed", 2);
    options.has_rank = 1;
    hotlease_comm* comm = NULL;
    WORKS(hotlease_comm_join(&options, &comm, &error));
    double number = 1, total = 0;
    hotlease_comm_request* request = NULL;
    WORKS(hotlease_comm_iallreduce(comm, &number, &total, 1, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, &request,
                                   &error));
    WORKS(hotlease_comm_send(comm, &number, sizeof number, 1, 0, &error)); /* it dies now */
    hotlease_error* error = NULL;
    EXPECT(hotlease_comm_wait(request, NULL, &error) == HOTLEASE_MEMBER_LOST);
    EXPECT(hotlease_error_rank(error) == 1 && strstr(hotlease_error_cause(error), "process has ended") != NULL);
    hotlease_error_free(error);
    EXPECT(hotlease_comm_barrier(comm, NULL) == HOTLEASE_MEMBER_LOST);
    hotlease_comm_free(comm);
    int status = 0;
    EXPECT(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int main(int argc, char** argv)
{
    if (argc > 1)
        return victim(argv[1]);
    meet();
    each(2, messages);
    each(4, operators);
    each(2, arguments);
    setenv("HOTLEASE_COMM_CHECKED", "1", 1);
    each(2, checked);
    unsetenv("HOTLEASE_COMM_CHECKED");
    each(5, parts);
    each(4, fewer_and_more);
    killed(argv[0]);
    joining();
    hotlease_comm_rendezvous_free(meeting);
    return checks_done();
}
