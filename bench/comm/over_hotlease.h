/* measure.h over hotlease. */
#include <hotlease/communicator.h>

#define INTS HOTLEASE_COMM_I32
#define SUM HOTLEASE_COMM_SUM

struct passing {
    hotlease_comm_request* request;
};

static hotlease_comm* all;
static hotlease_error* why;

static void must(hotlease_status status) {
    if (status == HOTLEASE_OK) return;
    fprintf(stderr, "rank %d: %s\n", rank, hotlease_error_message(why));
    exit(1);
}

static void begin(int* argc, char*** argv) {
    (void)argc, (void)argv;
    must(hotlease_comm_join(NULL, &all, &why));
    rank = (int)hotlease_comm_rank(all);
    ranks = (int)hotlease_comm_size(all);
}
static void end(void) { must(hotlease_comm_finish(all, &why)); }

static void send_to(int to, const void* bytes, size_t size) {
    must(hotlease_comm_send(all, bytes, size, (uint32_t)to, 1, &why));
}
static void receive_from(int from, void* bytes, size_t size) {
    must(hotlease_comm_recv(all, bytes, size, from, 1, NULL, &why));
}
static void start_send(passing* one, int to, const void* bytes, size_t size) {
    must(hotlease_comm_isend(all, bytes, size, (uint32_t)to, 1, &one->request, &why));
}
static void start_receive(passing* one, int from, void* bytes, size_t size) {
    must(hotlease_comm_irecv(all, bytes, size, from, 1, &one->request, &why));
}
static void wait_for(passing* some, int count) {
    for (int i = 0; i < count; i++) must(hotlease_comm_wait(some[i].request, NULL, &why));
}

static void barrier(void) { must(hotlease_comm_barrier(all, &why)); }
static void broadcast(int32_t* buffer, int count) {
    must(hotlease_comm_broadcast(all, buffer, (size_t)count, INTS, 0, &why));
}
static void gather(const int32_t* input, int32_t* output, int count) {
    must(hotlease_comm_gather(all, input, output, (size_t)count, INTS, 0, &why));
}
static void scatter(const int32_t* input, int32_t* output, int count) {
    must(hotlease_comm_scatter(all, input, output, (size_t)count, INTS, 0, &why));
}
static void allgather(const int32_t* input, int32_t* output, int count) {
    must(hotlease_comm_allgather(all, input, output, (size_t)count, INTS, &why));
}
static void alltoall(const int32_t* input, int32_t* output, int count) {
    must(hotlease_comm_alltoall(all, input, output, (size_t)count, INTS, &why));
}
static void reduce(const int32_t* input, int32_t* output, int count) {
    must(hotlease_comm_reduce(all, input, output, (size_t)count, INTS, SUM, 0, &why));
}
static void allreduce(const int32_t* input, int32_t* output, int count) {
    must(hotlease_comm_allreduce(all, input, output, (size_t)count, INTS, SUM, &why));
}
static void reduce_scatter(const int32_t* input, int32_t* output, int count) {
    must(hotlease_comm_reduce_scatter_block(all, input, output, (size_t)count, INTS, SUM, &why));
}
static void scan(const int32_t* input, int32_t* output, int count) {
    must(hotlease_comm_scan(all, input, output, (size_t)count, INTS, SUM, &why));
}
