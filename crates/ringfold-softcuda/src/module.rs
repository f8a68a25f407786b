//! Modules: texts of kernels that the program has loaded, and what it launches of them.

use std::ffi::c_char;
use std::sync::Arc;

use crate::call::{Answer, Out, Refusal, text_at};
use crate::driver::{Driver, lock};
use crate::operation::Operation;
use crate::ptx::{self, Kernel, Launch, Module};
use crate::report::end;

/// The most threads of a block.
const BLOCK_THREADS_MAX: u32 = 1024;

/// A kernel that has a handle.
#[derive(Clone, Debug)]
pub struct Function {
    module: usize,
    kernel: Arc<Kernel>,
}

impl Driver {
    /// Loads a text; its handle.
    pub fn load_module(&self, text: *const c_char) -> Answer<usize> {
        let _api = self.api();
        self.current()?;
        let text = text_at(text).ok_or(Refusal::INVALID_VALUE)?;
        let handle = self.handle();
        lock(&self.modules).insert(handle, ptx::module(&text));
        Ok(handle)
    }

    /// Unloads a text, of which nothing may run.
    pub fn unload_module(&self, handle: usize) -> Answer {
        let _api = self.api();
        let module = lock(&self.modules).remove(&handle);
        let module = module.ok_or(Refusal::INVALID_HANDLE)?;
        lock(&self.functions).retain(|_, function| function.module != handle);
        let is_used = |kernel: &Arc<Kernel>| Arc::strong_count(kernel) > 1;
        if module.kernels.values().any(is_used) {
            end(format!(
                "module {handle:#x} is unloaded under a kernel of it"
            ));
        }
        Ok(())
    }

    /// The handle of a kernel.
    pub fn function(&self, module: usize, name: *const c_char) -> Answer<usize> {
        let _api = self.api();
        let name = text_at(name).ok_or(Refusal::INVALID_VALUE)?;
        let modules = lock(&self.modules);
        let known: &Module = modules.get(&module).ok_or(Refusal::INVALID_HANDLE)?;
        let kernel = known.kernels.get(&name).ok_or(Refusal::NOT_FOUND)?.clone();
        let handle = self.handle();
        lock(&self.functions).insert(handle, Function { module, kernel });
        Ok(handle)
    }

    /// Enqueues a launch.
    pub fn launch(
        &'static self,
        handle: usize,
        grid: [u32; 2],
        arguments: Out<Out<u8>>,
        stream: usize,
    ) -> Answer {
        let function = lock(&self.functions).get(&handle).cloned();
        let kernel = function.ok_or(Refusal::INVALID_HANDLE)?.kernel;
        let [blocks, block_threads] = grid;
        if blocks == 0 || !(1..=BLOCK_THREADS_MAX).contains(&block_threads) {
            return Err(Refusal::INVALID_VALUE);
        }
        let mut values: Vec<u8> = vec![];
        for (index, bytes) in kernel.parameters.iter().enumerate() {
            values.resize(values.len().next_multiple_of(*bytes), 0);
            let argument = arguments.at(index).get()?;
            for place in 0..*bytes {
                values.push(argument.at(place).get()?);
            }
        }
        let launch = Launch::new(kernel, values, blocks, block_threads);
        self.enqueue(stream, Operation::Run(launch))
    }
}
