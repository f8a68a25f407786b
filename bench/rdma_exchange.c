/* Measures two processes that write to each other at the same time: the least that an all_reduce of two ranks does.
 *
 * Usage: rdma_exchange DEVICE DEVICE BYTES CALLS
 *
 * Each process opens its device, the first one or the second. In each call both write BYTES, which go with the request
 * (inline), into each other's memory, and read their own until the other's bytes are there; nothing separates the
 * calls. Prints the median time of a call in us, after a tenth of CALLS that are not timed. After 30 s it ends in any
 * case. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rdma_device.h"

#define BYTES_MAX 200
/* Each process has a page to write from, and one that the other writes to. */
#define PAGE_BYTES 4096
#define LIMIT_S 30
/* Of so many requests one is signaled; a queue holds them all. */
#define SIGNALED_EVERY 16
#define DEPTH (4 * SIGNALED_EVERY)
#define PORT 1

/* What the other process needs to write here. */
typedef struct {
    union ibv_gid gid;
    uint64_t address;
    uint32_t pair, rkey;
} place_t;

typedef struct {
    struct ibv_cq *queue;
    struct ibv_qp *pair;
    struct ibv_mr *memory;
    char *out;
    volatile uint32_t *in;
    size_t bytes;
    place_t peer;
    uint32_t posted;
} link_t;

/* The last address that stands for one of IPv4, which has RoCE's second version. */
static int gid_index(struct ibv_context *context, union ibv_gid *gid) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    struct ibv_port_attr port;
    if (ibv_query_port(context, PORT, &port) != 0) fail("ibv_query_port");
    for (int index = port.gid_tbl_len - 1; index >= 0; index--)
        if (ibv_query_gid(context, PORT, index, gid) == 0 && memcmp(gid->raw, mapped, sizeof mapped) == 0) return index;
    fprintf(stderr, "rdma_exchange: the device has no address\n");
    exit(1);
}

static void swap(int socket, const place_t *own, place_t *peer) {
    if (write(socket, own, sizeof *own) != sizeof *own) fail("write");
    if (read(socket, peer, sizeof *peer) != sizeof *peer) fail("the other process has ended");
}

static void connect_pair(link_t *link, int index) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    int what = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    if (ibv_modify_qp(link->pair, &init, what) != 0) fail("ibv_modify_qp");
    struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = link->peer.pair};
    receive.max_dest_rd_atomic = 1;
    receive.min_rnr_timer = 12;
    receive.ah_attr.is_global = 1;
    receive.ah_attr.port_num = PORT;
    receive.ah_attr.grh.dgid = link->peer.gid;
    receive.ah_attr.grh.sgid_index = index;
    receive.ah_attr.grh.hop_limit = 64;
    what = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC;
    if (ibv_modify_qp(link->pair, &receive, what | IBV_QP_MIN_RNR_TIMER) != 0) fail("ibv_modify_qp");
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .max_rd_atomic = 1};
    what = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
    if (ibv_modify_qp(link->pair, &send, what | IBV_QP_MAX_QP_RD_ATOMIC) != 0) fail("ibv_modify_qp");
}

static link_t linked(const char *device, size_t bytes, int socket) {
    struct ibv_context *context = opened(device);
    struct ibv_pd *domain = ibv_alloc_pd(context);
    link_t link = {.out = aligned_alloc(PAGE_BYTES, 2 * PAGE_BYTES), .bytes = bytes};
    if (domain == NULL || link.out == NULL) fail("memory");
    memset(link.out, 0, 2 * PAGE_BYTES);
    link.in = (volatile uint32_t *)(link.out + PAGE_BYTES);
    link.memory = ibv_reg_mr(domain, link.out, 2 * PAGE_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    link.queue = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
    if (link.memory == NULL || link.queue == NULL) fail("ibv_reg_mr, ibv_create_cq");
    struct ibv_qp_init_attr wanted = {.send_cq = link.queue, .recv_cq = link.queue, .qp_type = IBV_QPT_RC};
    wanted.cap = (struct ibv_qp_cap){DEPTH, 1, 1, 1, BYTES_MAX};
    link.pair = ibv_create_qp(domain, &wanted);
    if (link.pair == NULL) fail("ibv_create_qp");
    place_t own = {.address = (uint64_t)link.in, .pair = link.pair->qp_num, .rkey = link.memory->rkey};
    int index = gid_index(context, &own.gid);
    swap(socket, &own, &link.peer);
    connect_pair(&link, index);
    /* Both are connected before one writes. */
    swap(socket, &own, &link.peer);
    return link;
}

/* Waits until a request has ended, and with it those before it. */
static void wait_for_request(link_t *link) {
    struct ibv_wc ended;
    int count;
    while ((count = ibv_poll_cq(link->queue, 1, &ended)) == 0) continue;
    if (count < 0) fail("ibv_poll_cq");
    if (ended.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "rdma_exchange: %s\n", ibv_wc_status_str(ended.status));
        exit(1);
    }
}

/* Writes the number of the call at the end of the data, where it arrives last, and waits for the other's. The other may
 * be a call ahead. */
static void exchange(link_t *link, uint32_t call) {
    uint32_t last = link->bytes / sizeof call - 1;
    memcpy(link->out + last * sizeof call, &call, sizeof call);
    struct ibv_sge data = {(uint64_t)link->out, link->bytes, link->memory->lkey};
    struct ibv_send_wr request = {.sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *refused;
    int is_signaled = ++link->posted % SIGNALED_EVERY == 0;
    request.send_flags = IBV_SEND_INLINE | (is_signaled ? IBV_SEND_SIGNALED : 0);
    request.wr.rdma.remote_addr = link->peer.address;
    request.wr.rdma.rkey = link->peer.rkey;
    if (ibv_post_send(link->pair, &request, &refused) != 0) fail("ibv_post_send");
    while ((int32_t)(link->in[last] - call) < 0) continue;
    if (is_signaled) wait_for_request(link);
}

static int ascending(const void *one, const void *other) {
    double a_us = *(const double *)one, b_us = *(const double *)other;
    return (a_us > b_us) - (a_us < b_us);
}

int main(int argc, char **argv) {
    size_t bytes = argc == 5 ? strtoull(argv[3], NULL, 10) / 4 * 4 : 0;
    uint32_t calls = argc == 5 ? strtoul(argv[4], NULL, 10) : 0;
    if (bytes < 4 || bytes > BYTES_MAX || calls < 1) {
        fprintf(stderr, "usage: rdma_exchange DEVICE DEVICE BYTES CALLS, with 4 to %d bytes\n", BYTES_MAX);
        return 2;
    }
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) fail("socketpair");
    pid_t child = fork();
    if (child < 0) fail("fork");
    int which = child == 0;
    /* Neither outlives the other for long. */
    if (which) (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(sockets[!which]);
    alarm(LIMIT_S);
    link_t link = linked(argv[1 + which], bytes, sockets[which]);
    uint32_t call = 0;
    while (call < calls / 10) exchange(&link, ++call);
    double *times_us = calloc(calls, sizeof(double));
    if (times_us == NULL) fail("calloc");
    for (uint32_t timed = 0; timed < calls; timed++) {
        double begin_us = now_us();
        exchange(&link, ++call);
        times_us[timed] = now_us() - begin_us;
    }
    qsort(times_us, calls, sizeof(double), ascending);
    /* A pair goes when the other has all of its writes. */
    place_t own = {.pair = 0};
    swap(sockets[which], &own, &link.peer);
    if (which) return 0;
    printf("%.3f\n", times_us[calls / 2]);
    int status;
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
