/*
 * ringfold: collective communication for data-parallel training.
 *
 * Written by cbindgen from crates/ringfold-c/src; see docs/reference/c.md for a tutorial and the
 * rules that hold for all functions.
 */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * The version of the interface that this header describes. `ringfold_abi_version` returns that of
 * the library; a program can run if both are equal.
 */
#define RINGFOLD_ABI_VERSION 0

/**
 * The `color` in `ringfold_split` of a rank that is in no part.
 */
#define RINGFOLD_NO_COLOR -1

/**
 * The `root` of a receive from any sender.
 */
#define RINGFOLD_ANY_SOURCE -1

/**
 * The result of a call. The class of a failed collective is the same on all ranks.
 *
 * After one of the first five errors (see `ringfold_is_fatal`) the communicator is dead: buffers
 * of its calls hold undefined data, and later calls fail in the same way.
 */
typedef enum {
    /**
     * Success.
     */
    RINGFOLD_OK = 0,
    /**
     * A peer died, or left while it was still needed.
     */
    RINGFOLD_PEER_FAILED = 1,
    /**
     * A deadline passed.
     */
    RINGFOLD_TIMEOUT = 2,
    /**
     * Two ranks are in different calls, which is a defect of the program.
     */
    RINGFOLD_MISMATCH = 3,
    /**
     * Data from a peer is damaged.
     */
    RINGFOLD_CORRUPT = 4,
    /**
     * A rank called `ringfold_abort`.
     */
    RINGFOLD_ABORTED = 5,
    /**
     * The communicator was closed on this rank.
     */
    RINGFOLD_CLOSED = 6,
    /**
     * The arguments are invalid; the call had no effect.
     */
    RINGFOLD_INVALID_ARGUMENT = 7,
    /**
     * This build, machine or data type does not support the call.
     */
    RINGFOLD_UNSUPPORTED = 8,
    /**
     * The ranks could not join the job.
     */
    RINGFOLD_BOOTSTRAP = 9,
    /**
     * The operating system refused a request.
     */
    RINGFOLD_SYSTEM = 10,
    /**
     * A defect of the library; please report it.
     */
    RINGFOLD_INTERNAL = 11,
} ringfold_status_t;

/**
 * The collective, or the end of a message, of a `ringfold_request_t`.
 */
typedef enum {
    /**
     * Every rank gets the reduction of all inputs.
     */
    RINGFOLD_ALL_REDUCE = 1,
    /**
     * Every rank gets the root's input.
     */
    RINGFOLD_BROADCAST = 2,
    /**
     * The root gets the reduction of all inputs.
     */
    RINGFOLD_REDUCE = 3,
    /**
     * Every rank gets all inputs, in rank order.
     */
    RINGFOLD_ALL_GATHER = 4,
    /**
     * Rank i gets block i of the reduction of all inputs.
     */
    RINGFOLD_REDUCE_SCATTER = 5,
    /**
     * The root gets all inputs, in rank order.
     */
    RINGFOLD_GATHER = 6,
    /**
     * Rank i gets block i of the root's input.
     */
    RINGFOLD_SCATTER = 7,
    /**
     * Block j of rank i's input becomes block i of rank j's output.
     */
    RINGFOLD_ALL_TO_ALL = 8,
    /**
     * No rank leaves before all have entered.
     */
    RINGFOLD_BARRIER = 9,
    /**
     * A message to the rank `root`.
     */
    RINGFOLD_SEND = 10,
    /**
     * A message from the rank `root`.
     */
    RINGFOLD_RECV = 11,
    /**
     * Every rank sends to the next one and receives from the previous one.
     */
    RINGFOLD_SENDRECV = 12,
} ringfold_collective_t;

/**
 * The type of the elements of a call.
 */
typedef enum {
    /**
     * Signed integer of 8 bits.
     */
    RINGFOLD_INT8 = 1,
    /**
     * Unsigned integer of 8 bits.
     */
    RINGFOLD_UINT8 = 2,
    /**
     * Signed integer of 16 bits.
     */
    RINGFOLD_INT16 = 3,
    /**
     * Unsigned integer of 16 bits.
     */
    RINGFOLD_UINT16 = 4,
    /**
     * Signed integer of 32 bits.
     */
    RINGFOLD_INT32 = 5,
    /**
     * Unsigned integer of 32 bits.
     */
    RINGFOLD_UINT32 = 6,
    /**
     * Signed integer of 64 bits.
     */
    RINGFOLD_INT64 = 7,
    /**
     * Unsigned integer of 64 bits.
     */
    RINGFOLD_UINT64 = 8,
    /**
     * IEEE half precision; sums are computed in 32 bits.
     */
    RINGFOLD_FLOAT16 = 9,
    /**
     * bfloat16; sums are computed in 32 bits.
     */
    RINGFOLD_BFLOAT16 = 10,
    /**
     * `float`.
     */
    RINGFOLD_FLOAT32 = 11,
    /**
     * `double`.
     */
    RINGFOLD_FLOAT64 = 12,
    /**
     * One byte, 0 or 1.
     */
    RINGFOLD_BOOL = 13,
    /**
     * 8-bit float with 4 exponent bits and no infinity; a result beyond 464 is NaN.
     */
    RINGFOLD_FLOAT8_E4M3 = 14,
    /**
     * 8-bit float with 5 exponent bits; a result from 61440 on is infinite.
     */
    RINGFOLD_FLOAT8_E5M2 = 15,
} ringfold_dtype_t;

/**
 * The operation that combines the elements of all ranks.
 */
typedef enum {
    /**
     * Addition; integers wrap.
     */
    RINGFOLD_SUM = 1,
    /**
     * Multiplication; integers wrap.
     */
    RINGFOLD_PROD = 2,
    /**
     * The minimum; NaN if an element is NaN.
     */
    RINGFOLD_MIN = 3,
    /**
     * The maximum; NaN if an element is NaN.
     */
    RINGFOLD_MAX = 4,
    /**
     * The sum divided by the number of ranks; integers truncate.
     */
    RINGFOLD_AVG = 5,
    /**
     * The sum of each rank's input times its own `factor`; floats only.
     */
    RINGFOLD_PREMUL_SUM = 6,
    /**
     * Bitwise and.
     */
    RINGFOLD_BAND = 7,
    /**
     * Bitwise or.
     */
    RINGFOLD_BOR = 8,
    /**
     * Bitwise exclusive or.
     */
    RINGFOLD_BXOR = 9,
} ringfold_op_t;

/**
 * A group of ranks that communicate. All functions may be called from any thread; calls of several
 * threads are executed in the order in which they are made, which must be the same on all ranks.
 */
typedef struct ringfold_comm_t ringfold_comm_t;

/**
 * Settings for `ringfold_connect`.
 */
typedef struct ringfold_config_t ringfold_config_t;

/**
 * A listener of rank 0, whose address the other ranks do not know yet.
 */
typedef struct ringfold_listener_t ringfold_listener_t;

/**
 * Memory that `ringfold_alloc` has allocated.
 */
typedef struct ringfold_memory_t ringfold_memory_t;

/**
 * A registration of the program's own memory.
 */
typedef struct ringfold_registration_t ringfold_registration_t;

/**
 * A call in progress. May be used from any thread.
 */
typedef struct ringfold_work_t ringfold_work_t;

/**
 * A call. Set `size` to `sizeof(ringfold_request_t)`, and all unused fields to 0: C's designated
 * initialisers do so for the fields that are not named.
 */
typedef struct {
    /**
     * `sizeof(ringfold_request_t)`.
     */
    size_t size;
    /**
     * The collective: `RINGFOLD_ALL_REDUCE` and so on.
     */
    ringfold_collective_t collective;
    /**
     * The elements' type: `RINGFOLD_FLOAT32` and so on. A barrier has none.
     */
    ringfold_dtype_t dtype;
    /**
     * The reduction: `RINGFOLD_SUM` and so on. Ignored by collectives that do not reduce.
     */
    ringfold_op_t op;
    /**
     * The root; for `RINGFOLD_SEND` and `RINGFOLD_RECV` the peer, or `RINGFOLD_ANY_SOURCE`.
     */
    int root;
    /**
     * For messages: the number by which a receive selects its message.
     */
    uint32_t tag;
    /**
     * The factor of this rank's input in a `RINGFOLD_PREMUL_SUM`.
     */
    double factor;
    /**
     * The number of elements: of the buffer, or of one rank's block if each rank has one.
     */
    size_t count;
    /**
     * Instead of `count`, a count for each rank, for `RINGFOLD_ALL_GATHER`, `RINGFOLD_GATHER`,
     * `RINGFOLD_REDUCE_SCATTER` and `RINGFOLD_SCATTER`: the same list on all ranks. For
     * `RINGFOLD_ALL_TO_ALL`, the elements that this rank sends to each rank.
     */
    const size_t *counts;
    /**
     * For `RINGFOLD_ALL_TO_ALL` with `counts`: the elements that this rank receives from each
     * rank.
     */
    const size_t *output_counts;
    /**
     * The input; may be null on ranks that send nothing.
     */
    const void *input;
    /**
     * The output; may be null on ranks that receive nothing. `input` again, or the rank's block of
     * it, means in place.
     */
    void *output;
    /**
     * The deadline in seconds; 0 means the communicator's.
     */
    double timeout_s;
    /**
     * The algorithm; null means the tuner's choice.
     */
    const char *algorithm;
    /**
     * Not 0: the elements are combined in the order of the canonical tree, as with the setting
     * `reproducible`. The same on all ranks.
     */
    int reproducible;
} ringfold_request_t;

/**
 * A function of the program that is called about 30 times a second while a call waits. A result
 * other than 0 ends the call, and with it the communicator on all ranks, with `RINGFOLD_ABORTED`.
 */
typedef int (*ringfold_on_wait_t)(void *argument);

/**
 * A function of the program that is called once with its argument, when a call is done.
 */
typedef void (*ringfold_on_done_t)(void *argument);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the version of the interface of the library that the program runs with.
 */
int ringfold_abi_version(void);

/**
 * Returns the library's version, such as "0.1.0". Ranks of a job have the same version.
 */
const char *ringfold_version(void);

/**
 * Makes the call that `request` describes, and returns when the call is done on this rank. For a
 * receive, stores the sender in `source`, which may be null. `on_wait` may be null, too; it is
 * called with `argument`, under no lock, and may use the communicator.
 *
 * Safety:
 * The request's buffers are valid, and not used otherwise, until this function returns.
 */
ringfold_status_t ringfold_run(const ringfold_comm_t *comm,
                               const ringfold_request_t *request,
                               int *source,
                               ringfold_on_wait_t on_wait,
                               void *argument);

/**
 * Reduces `count` elements of all ranks by `op`; every rank receives the same bits in `output`,
 * which may be `input`.
 *
 * Safety:
 * Both buffers have `count` elements, and are not used otherwise until the function returns.
 */
ringfold_status_t ringfold_all_reduce(const ringfold_comm_t *comm,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      ringfold_dtype_t dtype,
                                      ringfold_op_t op);

/**
 * Combines `inputs` arrays of `count` elements each by `op`, in the order of the canonical tree,
 * and stores the result in `output`, which may be one of them. If each rank combines a power of
 * two arrays so, and the ranks then make a reproducible all-reduce, the result has the bits of an
 * all-reduce in which each array is a rank's own. Needs no communicator.
 *
 * Safety:
 * `arrays` holds `inputs` pointers; each array and `output` have `count` elements, and are not
 * used otherwise until the function returns.
 */
ringfold_status_t ringfold_fold(const void *const *arrays,
                                size_t inputs,
                                void *output,
                                size_t count,
                                ringfold_dtype_t dtype,
                                ringfold_op_t op);

/**
 * Copies the root's `count` elements to all ranks.
 *
 * Safety:
 * As for `ringfold_all_reduce`.
 */
ringfold_status_t ringfold_broadcast(const ringfold_comm_t *comm,
                                     void *buffer,
                                     size_t count,
                                     ringfold_dtype_t dtype,
                                     int root);

/**
 * Reduces `count` elements of all ranks by `op`; the root receives the result in `output`, which
 * may be `input`, and may be null on the other ranks.
 *
 * Safety:
 * As for `ringfold_all_reduce`.
 */
ringfold_status_t ringfold_reduce(const ringfold_comm_t *comm,
                                  const void *input,
                                  void *output,
                                  size_t count,
                                  ringfold_dtype_t dtype,
                                  ringfold_op_t op,
                                  int root);

/**
 * Gathers the `count` elements of each rank on all ranks, in rank order: `output` has room for
 * `count` times the number of ranks. In place if `input` is this rank's block of `output`.
 *
 * Safety:
 * As for `ringfold_all_reduce`, with these sizes.
 */
ringfold_status_t ringfold_all_gather(const ringfold_comm_t *comm,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      ringfold_dtype_t dtype);

/**
 * Reduces `count` elements times the number of ranks by `op`; each rank receives its block of
 * `count`. In place if `output` is this rank's block of `input`, whose other blocks are undefined
 * then.
 *
 * Safety:
 * As for `ringfold_all_reduce`, with these sizes.
 */
ringfold_status_t ringfold_reduce_scatter(const ringfold_comm_t *comm,
                                          const void *input,
                                          void *output,
                                          size_t count,
                                          ringfold_dtype_t dtype,
                                          ringfold_op_t op);

/**
 * Gathers the `count` elements of each rank on the root, in rank order. `output` may be null on
 * the other ranks.
 *
 * Safety:
 * As for `ringfold_all_gather`.
 */
ringfold_status_t ringfold_gather(const ringfold_comm_t *comm,
                                  const void *input,
                                  void *output,
                                  size_t count,
                                  ringfold_dtype_t dtype,
                                  int root);

/**
 * Sends each rank its block of `count` elements of the root's `input`, which may be null on the
 * other ranks.
 *
 * Safety:
 * As for `ringfold_all_gather`, with input and output exchanged.
 */
ringfold_status_t ringfold_scatter(const ringfold_comm_t *comm,
                                   const void *input,
                                   void *output,
                                   size_t count,
                                   ringfold_dtype_t dtype,
                                   int root);

/**
 * Exchanges blocks of `count` elements: block j of rank i's input becomes block i of rank j's
 * output. Not in place.
 *
 * Safety:
 * Both buffers have `count` elements times the number of ranks, and are not used otherwise until
 * the function returns.
 */
ringfold_status_t ringfold_all_to_all(const ringfold_comm_t *comm,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      ringfold_dtype_t dtype);

/**
 * Waits until all ranks have called this function.
 *
 * Safety:
 * `comm` is a communicator or null.
 */
ringfold_status_t ringfold_barrier(const ringfold_comm_t *comm);

/**
 * Sends `count` elements to a peer, whose receive has the same tag, type and count. The peer may
 * be this rank: the message is kept until this rank receives it. If too much is kept, the send
 * fails at its deadline.
 *
 * Safety:
 * `input` has `count` elements, and is not changed until the function returns.
 */
ringfold_status_t ringfold_send(const ringfold_comm_t *comm,
                                const void *input,
                                size_t count,
                                ringfold_dtype_t dtype,
                                int peer,
                                uint32_t tag);

/**
 * Receives `count` elements from a peer, or from `RINGFOLD_ANY_SOURCE`; stores the sender in
 * `source`, which may be null.
 *
 * Safety:
 * `output` has room for `count` elements, and is not used otherwise until the function returns.
 */
ringfold_status_t ringfold_recv(const ringfold_comm_t *comm,
                                void *output,
                                size_t count,
                                ringfold_dtype_t dtype,
                                int peer,
                                uint32_t tag,
                                int *source);

/**
 * Joins the job that the environment describes (`RINGFOLD_*`, torchrun, mpirun, srun and others).
 * A process without such an environment is a job of one rank. Waits until all ranks have joined,
 * or the deadline for joining has passed.
 *
 * Safety:
 * `comm` is a place for the result.
 */
ringfold_status_t ringfold_init(ringfold_comm_t **comm);

/**
 * Joins the job that `config` describes; settings that `config` lacks come from the environment,
 * or all of them if `config` is null. Rank 0 may pass a listener, which is used up, also by a
 * failure; other ranks pass null.
 *
 * Safety:
 * `config` and `listener` are handles or null; `comm` is a place for the result.
 */
ringfold_status_t ringfold_connect(const ringfold_config_t *config,
                                   ringfold_listener_t *listener,
                                   ringfold_comm_t **comm);

/**
 * Opens a listener on free ports of this host's addresses, for rank 0 of a job whose ranks pass on
 * its address themselves. `toward` is a host name, an address or null; this host's address on the
 * route to `toward` is listed first.
 *
 * Safety:
 * `toward` is a text or null; `listener` is a place for the result.
 */
ringfold_status_t ringfold_listener_open(const char *toward, ringfold_listener_t **listener);

/**
 * Returns the address for the other ranks' `ringfold_config_set(config, "address", ...)`; null if
 * `listener` is null. Valid until the listener is freed.
 *
 * Safety:
 * `listener` is a handle or null.
 */
const char *ringfold_listener_address(const ringfold_listener_t *listener);

/**
 * Frees a listener; null is ignored.
 *
 * Safety:
 * `listener` is a handle, which is not used afterwards, or null.
 */
void ringfold_listener_free(ringfold_listener_t *listener);

/**
 * Returns this process' rank in the communicator; -1 if `comm` is null.
 *
 * Safety:
 * `comm` is a handle or null.
 */
int ringfold_rank(const ringfold_comm_t *comm);

/**
 * Returns the number of ranks; -1 if `comm` is null.
 *
 * Safety:
 * `comm` is a handle or null.
 */
int ringfold_world_size(const ringfold_comm_t *comm);

/**
 * Returns this rank's number among the ranks of its host; -1 if `comm` is null.
 *
 * Safety:
 * `comm` is a handle or null.
 */
int ringfold_local_rank(const ringfold_comm_t *comm);

/**
 * Returns the number of ranks on this host; -1 if `comm` is null.
 *
 * Safety:
 * `comm` is a handle or null.
 */
int ringfold_local_size(const ringfold_comm_t *comm);

/**
 * Returns the number of hosts; -1 if `comm` is null.
 *
 * Safety:
 * `comm` is a handle or null.
 */
int ringfold_hosts(const ringfold_comm_t *comm);

/**
 * Returns the transport: "shm", "tcp", "rdma", "shm+tcp", "shm+rdma", or "self" in a job of one
 * rank; null if `comm` is null. Valid until the communicator is freed.
 *
 * Safety:
 * `comm` is a handle or null.
 */
const char *ringfold_transport(const ringfold_comm_t *comm);

/**
 * Makes communicators of the ranks with equal `color`, ordered by `key`, then by rank here. All
 * ranks call this function; a rank whose color is `RINGFOLD_NO_COLOR` gets null.
 *
 * Safety:
 * `comm` is a handle or null; `part` is a place for the result.
 */
ringfold_status_t ringfold_split(const ringfold_comm_t *comm,
                                 int color,
                                 int64_t key,
                                 ringfold_comm_t **part);

/**
 * Returns the status of the error that has ended the communicator, or `RINGFOLD_OK`. The error's
 * text and ranks are available as those of a failed call. Never blocks; works while another thread
 * is in a call.
 *
 * Safety:
 * `comm` is a handle or null.
 */
ringfold_status_t ringfold_fault(const ringfold_comm_t *comm);

/**
 * Ends the communicator on all ranks: calls that wait in it fail with `RINGFOLD_ABORTED`, and name
 * this rank and `reason`. Not for signal handlers.
 *
 * Safety:
 * `comm` is a handle or null; `reason` is a text.
 */
ringfold_status_t ringfold_abort(const ringfold_comm_t *comm, const char *reason);

/**
 * Closes the communicator: waits for this rank's calls, and says goodbye to the peers. Later calls
 * fail with `RINGFOLD_CLOSED`. Not collective; repeated calls do no harm.
 *
 * Safety:
 * `comm` is a handle or null.
 */
ringfold_status_t ringfold_close(const ringfold_comm_t *comm);

/**
 * Frees a communicator; null is ignored. A communicator that was not closed is closed as by
 * `ringfold_close`, but without waiting: if calls are in progress, it is aborted on all ranks.
 *
 * Safety:
 * `comm` is a handle, which is not used afterwards, or null. No other thread is in a call of the
 * communicator.
 */
void ringfold_free(ringfold_comm_t *comm);

/**
 * Creates empty settings: every value comes from the environment.
 *
 * Safety:
 * `config` is a place for the result.
 */
ringfold_status_t ringfold_config_new(ringfold_config_t **config);

/**
 * Sets the setting `name` to `value`, a text: time spans in seconds, flags as "true" and "false".
 * Names are rank, world_size, address, secret, timeout, connect_timeout, peer_timeout, transport,
 * algorithm, protocol, late_rank, max_channels, slice_bytes, socket_ifname, sockets, helpers,
 * straggler, reproducible, bind, tuner_plugin and tuner_config.
 *
 * Safety:
 * `config` is a handle or null, which no other thread uses; both texts end with a zero byte.
 */
ringfold_status_t ringfold_config_set(ringfold_config_t *config,
                                      const char *name,
                                      const char *value);

/**
 * Frees settings; null is ignored.
 *
 * Safety:
 * `config` is a handle, which is not used afterwards, or null.
 */
void ringfold_config_free(ringfold_config_t *config);

/**
 * Allocates `bytes` bytes of zeros that calls of this host's ranks read and write without a copy.
 * All ranks call this function, at the same place in their order of calls; sizes may differ.
 *
 * Safety:
 * `comm` is a handle or null; `memory` is a place for the result.
 */
ringfold_status_t ringfold_alloc(const ringfold_comm_t *comm,
                                 size_t bytes,
                                 ringfold_memory_t **memory);

/**
 * Returns the address of the first byte, on a page boundary; null if `memory` is null.
 *
 * Safety:
 * `memory` is a handle or null.
 */
void *ringfold_memory_address(const ringfold_memory_t *memory);

/**
 * Returns whether the peers on this host can access the memory.
 *
 * Safety:
 * `memory` is a handle or null.
 */
bool ringfold_memory_is_shared(const ringfold_memory_t *memory);

/**
 * Frees memory, on this rank alone; null is ignored. No call may still use the memory.
 *
 * Safety:
 * `memory` is a handle, which is not used afterwards, or null.
 */
void ringfold_memory_free(ringfold_memory_t *memory);

/**
 * Registers the program's own `bytes` bytes at `buffer`, which keep their address. The memory must
 * be private, not that of a file or of the stack, and not pinned by a device. All ranks call this
 * function, as with `ringfold_alloc`. A registration costs as much as several calls save;
 * `ringfold_alloc` is cheaper.
 *
 * Safety:
 * The memory stays mapped as it is until the registration is freed, and is not used while this
 * function runs and while the registration is freed. `registration` is a place for the result.
 */
ringfold_status_t ringfold_register(const ringfold_comm_t *comm,
                                    void *buffer,
                                    size_t bytes,
                                    ringfold_registration_t **registration);

/**
 * Waits for this rank's calls in progress, and ends the registration; null is ignored. The memory
 * keeps its contents.
 *
 * Safety:
 * `registration` is a handle, which is not used afterwards, or null.
 */
void ringfold_registration_free(ringfold_registration_t *registration);

/**
 * Returns the text of the calling thread's last failed call, which names the call, the ranks and
 * the remedy; "" if no call has failed. Valid until the thread's next failed call, or its end.
 */
const char *ringfold_error_message(void);

/**
 * Writes to `ranks` at most `capacity` of the ranks that the calling thread's last failed call
 * names: ranks that died or were waited for, the two that differ, the one that aborted, or the one
 * whose data is damaged. Returns the number of ranks that the call names.
 *
 * Safety:
 * `ranks` has room for `capacity` numbers, or is null.
 */
size_t ringfold_error_ranks(int *ranks, size_t capacity);

/**
 * Returns whether a communicator is dead after a call with this status.
 */
bool ringfold_is_fatal(int status);

/**
 * Returns the name of a status, such as "RINGFOLD_TIMEOUT"; "unknown" for other numbers.
 */
const char *ringfold_status_name(int status);

/**
 * Starts the call that `request` describes, and returns at once. The request itself may be freed
 * afterwards.
 *
 * Safety:
 * The request's buffers are valid, and not used otherwise, until the call is done; `work` is a
 * place for the result.
 */
ringfold_status_t ringfold_start(const ringfold_comm_t *comm,
                                 const ringfold_request_t *request,
                                 ringfold_work_t **work);

/**
 * Starts `count` calls that are made together, in this order: like `ringfold_start` of each, but
 * they share the machine better. All ranks make the same groups. `requests` is an array of `count`
 * requests, `works` one of as many places. On failure no call is started.
 *
 * Safety:
 * As for `ringfold_start` of each.
 */
ringfold_status_t ringfold_start_group(const ringfold_comm_t *comm,
                                       const ringfold_request_t *requests,
                                       size_t count,
                                       ringfold_work_t **works);

/**
 * Waits until the call is done on this rank, and returns the call's status. The call's deadline
 * bounds the wait.
 *
 * Safety:
 * `work` is a handle or null.
 */
ringfold_status_t ringfold_wait(const ringfold_work_t *work);

/**
 * Waits at most `timeout_s` seconds, and stores in `is_done` whether the call is done. If not, the
 * call continues.
 *
 * Safety:
 * `work` is a handle or null; `is_done` is a place for the result.
 */
ringfold_status_t ringfold_wait_for(const ringfold_work_t *work, double timeout_s, bool *is_done);

/**
 * Returns whether the call is done, successfully or not; true if `work` is null. Never blocks.
 *
 * Safety:
 * `work` is a handle or null.
 */
bool ringfold_is_done(const ringfold_work_t *work);

/**
 * Returns the sender of a receive that has succeeded; otherwise -1.
 *
 * Safety:
 * `work` is a handle or null.
 */
int ringfold_source(const ringfold_work_t *work);

/**
 * Calls `on_done(argument)` once when the call is done, successfully or not: at once on this
 * thread if the call is done already, otherwise on a thread of the library. `on_done` may make
 * calls, and wait.
 *
 * Safety:
 * `on_done` may be called by another thread with `argument`, and raises no exception.
 */
ringfold_status_t ringfold_when_done(const ringfold_work_t *work,
                                     ringfold_on_done_t on_done,
                                     void *argument);

/**
 * Waits until the call is done, because the call uses the program's buffers, and frees the handle;
 * null is ignored.
 *
 * Safety:
 * `work` is a handle, which is not used afterwards, or null.
 */
void ringfold_work_free(ringfold_work_t *work);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/* Compilers can be told to make enumerations smaller (-fshort-enums); the library's have 4 bytes. */
#if defined(__cplusplus) && __cplusplus >= 201103L
static_assert(sizeof(ringfold_dtype_t) == 4, "compile with -fno-short-enums");
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
_Static_assert(sizeof(ringfold_dtype_t) == 4, "compile with -fno-short-enums");
#endif
