//! NCCL's log, in its own format and subsystem: `NCCL INFO ringfold tuner: ...` with
//! NCCL_DEBUG=INFO.

use std::ffi::{CString, c_uint};

use ringfold_tuner_host::abi::{Logger, TUNING, level};

/// Where lines go: what NCCL handed over, or nowhere.
pub struct Journal(pub Logger);

impl Journal {
    /// What was done, and why.
    pub fn info(&self, text: &str) {
        self.write(level::INFO, text);
    }

    /// What is wrong, and what to do.
    pub fn warn(&self, text: &str) {
        self.write(level::WARN, text);
    }

    fn write(&self, level: c_uint, text: &str) {
        let Some(log) = self.0 else {
            return;
        };
        let Ok(text) = CString::new(format!("ringfold tuner: {text}")) else {
            return;
        };
        let (file, line) = (c"ringfold-nccl-tuner".as_ptr(), 0);
        // SAFETY: the interface promises a function that takes these and what `format` stands for:
        // one text; all three end with a zero and outlive the call.
        unsafe { log(level, TUNING, file, line, c"%s".as_ptr(), text.as_ptr()) }
    }
}
