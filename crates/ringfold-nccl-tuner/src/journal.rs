//! NCCL's log, in its own format and subsystem: `NCCL INFO ringfold tuner: ...` with
//! NCCL_DEBUG=INFO.

use std::ffi::{CString, c_uint};

use ringfold_tuner_host::abi::{Logger, TUNING, level};

/// NCCL's logger; without a logger, lines are dropped.
pub struct Journal(pub Logger);

impl Journal {
    /// Logs a decision and its reason.
    pub fn info(&self, text: &str) {
        self.write(level::INFO, text);
    }

    /// Logs a problem and its remedy.
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
        // SAFETY: the interface promises a function that takes these arguments, and one text for
        // `format`; all three texts end with a zero and outlive the call.
        unsafe { log(level, TUNING, file, line, c"%s".as_ptr(), text.as_ptr()) }
    }
}
