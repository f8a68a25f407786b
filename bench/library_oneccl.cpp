/* oneCCL's all-reduce and barrier on memory of the host. */
#include "library.h"

#include <mpi.h>
#include <oneapi/ccl.hpp>

#include <memory>

static std::unique_ptr<ccl::communicator> communicator;

void library_begin(int rank, int ranks) {
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) store = ccl::create_kvs(address);
    communicator = std::make_unique<ccl::communicator>(ccl::create_communicator(ranks, rank, store));
}

void library_all_reduce(float *input, float *output, int count) {
    ccl::allreduce(input, output, count, ccl::reduction::sum, *communicator).wait();
}

void library_barrier(void) {
    ccl::barrier(*communicator).wait();
}
