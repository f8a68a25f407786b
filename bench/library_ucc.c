/* UCC's all-reduce and barrier on memory of the host. */
#include "library.h"

#include <mpi.h>
#include <stdio.h>
#include <ucc/api/ucc.h>

static ucc_context_h context;
static ucc_team_h team;

static void must(ucc_status_t status, const char *operation) {
    if (status >= 0) return;
    fprintf(stderr, "%s: %s\n", operation, ucc_status_string(status));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* UCC asks for this exchange and then for its completion; here it is complete at once. */
static ucc_status_t exchange(void *own, void *all, size_t bytes, void *unused, void **request) {
    (void)unused;
    *request = NULL;
    return MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD) == MPI_SUCCESS
               ? UCC_OK
               : UCC_ERR_NO_MESSAGE;
}

static ucc_status_t done(void *request) {
    (void)request;
    return UCC_OK;
}

void library_begin(int rank, int ranks) {
    ucc_lib_config_h settings;
    ucc_lib_h library;
    ucc_lib_params_t wanted = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_SINGLE};
    must(ucc_lib_config_read(NULL, NULL, &settings), "ucc_lib_config_read");
    must(ucc_init(&wanted, settings, &library), "ucc_init");
    ucc_oob_coll_t oob = {.allgather = exchange, .req_test = done, .req_free = done, .n_oob_eps = ranks, .oob_ep = rank};
    ucc_context_config_h context_settings;
    ucc_context_params_t of_context = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = oob};
    must(ucc_context_config_read(library, NULL, &context_settings), "ucc_context_config_read");
    must(ucc_context_create(library, &of_context, context_settings, &context), "ucc_context_create");
    ucc_team_params_t of_team = {
        .mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE,
        .oob = oob,
        .ep = rank,
        .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
    };
    must(ucc_team_create_post(&context, 1, &of_team, &team), "ucc_team_create_post");
    ucc_status_t status;
    while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS) ucc_context_progress(context);
    must(status, "ucc_team_create_test");
}

static void run(ucc_coll_args_t *call) {
    ucc_coll_req_h request;
    ucc_status_t status;
    must(ucc_collective_init(call, &request, team), "ucc_collective_init");
    must(ucc_collective_post(request), "ucc_collective_post");
    while ((status = ucc_collective_test(request)) == UCC_INPROGRESS) ucc_context_progress(context);
    must(status, "ucc_collective_test");
    must(ucc_collective_finalize(request), "ucc_collective_finalize");
}

void library_all_reduce(float *input, float *output, int count) {
    ucc_coll_args_t call = {
        .mask = UCC_COLL_ARGS_FIELD_FLAGS,
        .coll_type = UCC_COLL_TYPE_ALLREDUCE,
        .src.info = {input, count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST},
        .dst.info = {output, count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST},
        .op = UCC_OP_SUM,
        .flags = input == output ? UCC_COLL_ARGS_FLAG_IN_PLACE : 0,
    };
    run(&call);
}

void library_barrier(void) {
    ucc_coll_args_t call = {.coll_type = UCC_COLL_TYPE_BARRIER};
    run(&call);
}
