/* UCC's all-reduce and barrier on memory of the host. MPI carries only what ranks exchange to find each other. UCC
 * leaves waiting to its caller: with LIBRARY_YIELD in the environment, ranks that wait give up their cores. */
#include "library.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucc/api/ucc.h>

static ucc_context_h context;
static ucc_team_h team;
static int gives_up_core;

static void require(ucc_status_t status, const char *call) {
    if (status >= 0) return;
    fprintf(stderr, "%s: %s\n", call, ucc_status_string(status));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static ucc_status_t begin_exchange(void *own, void *all, size_t bytes, void *unused, void **request) {
    (void)unused;
    *request = malloc(sizeof(MPI_Request));
    MPI_Iallgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, *request);
    return UCC_OK;
}

static ucc_status_t test_exchange(void *request) {
    int done;
    MPI_Test(request, &done, MPI_STATUS_IGNORE);
    return done ? UCC_OK : UCC_INPROGRESS;
}

static ucc_status_t end_exchange(void *request) {
    free(request);
    return UCC_OK;
}

/* One turn of waiting. */
static void progress(void) {
    ucc_context_progress(context);
    if (gives_up_core) sched_yield();
}

void library_begin(int rank, int ranks) {
    gives_up_core = getenv("LIBRARY_YIELD") != NULL;
    ucc_oob_coll_t exchange = {.allgather = begin_exchange,
                               .req_test = test_exchange,
                               .req_free = end_exchange,
                               .n_oob_eps = (uint32_t)ranks,
                               .oob_ep = (uint32_t)rank};
    ucc_lib_params_t lib_params = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_SINGLE};
    ucc_lib_config_h lib_config;
    ucc_lib_h lib;
    require(ucc_lib_config_read(NULL, NULL, &lib_config), "ucc_lib_config_read");
    require(ucc_init(&lib_params, lib_config, &lib), "ucc_init");
    ucc_lib_config_release(lib_config);

    ucc_context_params_t context_params = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = exchange};
    ucc_context_config_h context_config;
    require(ucc_context_config_read(lib, NULL, &context_config), "ucc_context_config_read");
    require(ucc_context_create(lib, &context_params, context_config, &context), "ucc_context_create");
    ucc_context_config_release(context_config);

    ucc_team_params_t team_params = {
        .mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE | UCC_TEAM_PARAM_FIELD_OOB,
        .ep = (uint64_t)rank,
        .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
        .oob = exchange};
    require(ucc_team_create_post(&context, 1, &team_params, &team), "ucc_team_create_post");
    ucc_status_t status;
    while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS) progress();
    require(status, "ucc_team_create_test");
}

static void complete(ucc_coll_args_t *args) {
    ucc_coll_req_h request;
    require(ucc_collective_init(args, &request, team), "ucc_collective_init");
    require(ucc_collective_post(request), "ucc_collective_post");
    ucc_status_t status;
    while ((status = ucc_collective_test(request)) > 0) progress();
    require(status, "ucc_collective_test");
    require(ucc_collective_finalize(request), "ucc_collective_finalize");
}

static ucc_coll_buffer_info_t floats(float *data, int count) {
    return (ucc_coll_buffer_info_t){data, (ucc_count_t)count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST};
}

void library_all_reduce(float *input, float *output, int count) {
    ucc_coll_args_t args = {.coll_type = UCC_COLL_TYPE_ALLREDUCE, .op = UCC_OP_SUM};
    args.src.info = floats(input, count);
    args.dst.info = floats(output, count);
    if (input == output) {
        args.mask = UCC_COLL_ARGS_FIELD_FLAGS;
        args.flags = UCC_COLL_ARGS_FLAG_IN_PLACE;
    }
    complete(&args);
}

void library_barrier(void) {
    ucc_coll_args_t args = {.coll_type = UCC_COLL_TYPE_BARRIER};
    complete(&args);
}
