/* What the programs that measure an RDMA device share: its opening, the clock, and the end by an error, which names the
 * program. */
#ifndef RDMA_DEVICE_H
#define RDMA_DEVICE_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void fail(const char *what) {
    fprintf(stderr, "%s: ", program_invocation_short_name);
    perror(what);
    exit(1);
}

static struct ibv_context *opened(const char *name) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    if (devices == NULL) fail("ibv_get_device_list");
    for (int i = 0; devices[i] != NULL; i++) {
        if (strcmp(ibv_get_device_name(devices[i]), name) != 0) continue;
        struct ibv_context *context = ibv_open_device(devices[i]);
        if (context == NULL) fail(name);
        return context;
    }
    fprintf(stderr, "%s: there is no device %s\n", program_invocation_short_name, name);
    exit(1);
}

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

#endif
