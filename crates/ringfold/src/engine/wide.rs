//! Partial results of short floats in `F32`, in the engine's scratch memory ([`Spec::is_wide`]).

#![forbid(unsafe_code)]

use super::plan::ExecutionPlan;
use crate::error::Result;
use crate::reduce::{Level, ReductionKernel};
use crate::schedule::{Buffer, Span, Spec};
use crate::types::{DType, Op};

/// The kernels of a call whose partial results are wide.
#[derive(Clone, Copy, Debug)]
pub struct WideKernels {
    /// From the ranks' own elements to a partial result.
    begin: ReductionKernel,
    /// From partial results to another.
    carry: ReductionKernel,
    /// From partial results to the result, which is rounded.
    end: ReductionKernel,
}

impl WideKernels {
    /// Returns the kernels of `op` for elements of type `short`, if partial results of `plan` are
    /// wide.
    pub fn for_plan(plan: &ExecutionPlan, op: Op, short: DType) -> Result<Option<WideKernels>> {
        if !plan.schedule.spec.is_wide {
            return Ok(None);
        }
        let kernel = |from, to| ReductionKernel::between(op, (from, to), Level::current());
        Ok(Some(WideKernels {
            begin: kernel(short, DType::F32)?,
            carry: kernel(DType::F32, DType::F32)?,
            end: kernel(DType::F32, short)?,
        }))
    }

    /// Returns the kernel from copies of `from` to `into`; `None` if neither is wide.
    pub fn of(&self, from: Span, into: Span) -> Option<ReductionKernel> {
        let is_wide = |span: Span| span.buffer == Buffer::Scratch;
        match (is_wide(from), is_wide(into)) {
            (false, false) => None,
            (false, true) => Some(self.begin),
            (true, true) => Some(self.carry),
            (true, false) => Some(self.end),
        }
    }
}

/// Returns the length of an element of scratch memory as a multiple of that of the call's elements.
pub fn scale(spec: &Spec, dtype: DType) -> usize {
    match spec.is_wide {
        true => DType::F32.size_bytes() / dtype.size_bytes(),
        false => 1,
    }
}
