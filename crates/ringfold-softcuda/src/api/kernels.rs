//! Modules and kernels.

use std::ffi::{c_char, c_uint};

use crate::call::{Out, Refusal};

calls! {
    cuModuleLoadData(driver, module: Out<usize>, image: *const c_char) {
        module.put(driver.load_module(image)?)
    }

    cuModuleGetFunction(driver, function: Out<usize>, module: usize, name: *const c_char) {
        function.put(driver.function(module, name)?)
    }

    cuModuleUnload(driver, module: usize) {
        driver.unload_module(module)
    }

    cuLaunchKernel(
        driver,
        function: usize,
        blocks: c_uint,
        blocks_y: c_uint,
        blocks_z: c_uint,
        block_threads: c_uint,
        block_threads_y: c_uint,
        block_threads_z: c_uint,
        shared_bytes: c_uint,
        stream: usize,
        arguments: Out<Out<u8>>,
        extra: usize,
    ) {
        let rest = [blocks_y, blocks_z, block_threads_y, block_threads_z];
        // Kernels of one dimension, without shared memory.
        if rest != [1; 4] || shared_bytes != 0 || extra != 0 {
            return Err(Refusal::INVALID_VALUE);
        }
        driver.launch(function, [blocks, block_threads], arguments, stream)
    }
}
